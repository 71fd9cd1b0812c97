"""Decoder-only language model of local and global attention, dense blocks and experts side by side: Gemma 4.

    h = sqrt(D) E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final)
    logits = c tanh(float32(h E^T) / c)

    layer_i     sliding_attention   W keys, heads of head_dim, rotated as a whole
                full_attention      all keys, heads of global_head_dim, rotated in part; with attention_k_eq_v
                                    fewer key heads, whose values are the keys before their norm

T tokens, D hidden, V vocabulary, c the soft cap of the logits. sqrt(D) is rounded to the dtype of the module.
Every layer is L3/dual_branch_decoder_layer. Parameters, activations and caches have the dtype of the module,
logits float32. `config` is the Hugging Face configuration of the text model, complete; what members of the
family have beside this one (inputs for each layer, shared caches, layers without experts) is refused.
Mirrors vllm.model_executor.models.gemma4.Gemma4ForCausalLM; `forward` returns hidden states,
`compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.experts_config import expert_arguments
from fastkernels.nn.rope_config import rope_parameters_of
from fastkernels.nn.weight_map import WeightMap

from ..L1.embedding import ScaledEmbedding
from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softcap import Softcap
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead
from ..L3.dual_branch_decoder_layer import DualBranchDecoderLayer

SLIDING, FULL = "sliding_attention", "full_attention"
# What transformers' class sets where a configuration has none: every sixth layer, and the last, attends to
# all keys, with heads of this size.
PERIOD, GLOBAL_HEAD_DIM = 6, 512
ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
TOWER_DEPTH = range(1, 9)  # parts of a tensor's name behind that of a tower


class Gemma4ForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layers = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), reader.integer("hidden_size")

        self.embed_tokens = ScaledEmbedding(vocab_size, hidden_size, hidden_size**0.5)
        self.layers = nn.ModuleList(DualBranchDecoderLayer(**layer) for layer in layers)
        # By its name random weights let texts vary though the head is the embedding (nn/random_weights.py).
        self.signed_norm = RMSNorm(hidden_size, reader.number("rms_norm_eps"))
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.weight
        cap = reader.number("final_logit_softcapping", default=None)
        self.softcap = None if cap is None else Softcap(cap)
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(layers)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]"""
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(positions, hidden_states)
        return self.signed_norm(hidden_states)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        logits_TV = self.lm_head(hidden_states)
        return logits_TV if self.softcap is None else self.softcap(logits_TV)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the batch calls."""
        return language_model(self, batch)


def layer_arguments(config: ConfigReader) -> list[dict[str, Any]]:
    """The arguments of each DualBranchDecoderLayer; a UsageError names the key that is wrong or not
    supported."""
    config.choice("model_type", {"gemma4_text": SLIDING})
    config.choice("hidden_activation", {"gelu_pytorch_tanh": "gelu_tanh"})
    config.refuse(["attention_bias", "quantization_config", "use_double_wide_mlp"])
    config.refuse(["hidden_size_per_layer_input", "num_kv_shared_layers"], neutral=(None, 0))
    config.refuse(["use_bidirectional_attention"], neutral=(None, "vision"))  # texts are causal either way
    if not config.flag("enable_moe_block"):
        raise config.error("enable_moe_block", "a model without experts is not supported")
    every = {
        "hidden_size": config.integer("hidden_size"),
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": config.integer("num_attention_heads"),
        "max_position": config.integer("max_position_embeddings"),
        **expert_arguments(config, chosen="top_k_experts"),
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "rms_norm_eps": config.number("rms_norm_eps"),
    }
    by_kind: dict[str, dict[str, Any]] = {}
    layers = []
    for index, kind in enumerate(layer_kinds(config)):
        if kind not in by_kind:
            by_kind[kind] = every | attention_arguments(config, kind, index)
        layers.append(by_kind[kind])
    return layers


def layer_kinds(config: ConfigReader) -> list[str]:
    """The kind of attention of each layer; the last one attends to all keys, as the reference library has
    it."""
    num_layers = config.integer("num_hidden_layers")
    if not config.has("layer_types"):
        default = [FULL if index % PERIOD == PERIOD - 1 else SLIDING for index in range(num_layers)]
        return [*default[:-1], FULL]
    kinds = config.names("layer_types", num_layers, (SLIDING, FULL))
    if kinds[-1] != FULL:
        raise config.error("layer_types", f"the last layer must be {FULL!r}, not {kinds[-1]!r}")
    return kinds


def attention_arguments(config: ConfigReader, kind: str, index: int) -> dict[str, Any]:
    """What layers of a kind, the first of which is `index`, have of their own."""
    is_full, num_heads = kind == FULL, config.integer("num_attention_heads")
    rope = config if config.has("rope_parameters") else ConfigReader({"rope_parameters": ROPE})
    k_eq_v = is_full and config.flag("attention_k_eq_v")
    # Files that transformers 5.17 has saved list what such layers have otherwise one by one.
    own = config.section("per_layer_config").section(str(index)) if is_full else config
    heads_key, size_key = "num_key_value_heads", "head_dim"
    if is_full and not own.config:
        own = config
        size_key = "global_head_dim"
        heads_key = "num_global_key_value_heads" if k_eq_v else heads_key
    num_kv_heads = own.integer(heads_key, default=config.integer("num_key_value_heads"))
    if num_heads % num_kv_heads:
        raise own.error(heads_key, f"{num_kv_heads} does not divide num_attention_heads, {num_heads}")
    head_dim = own.integer(size_key, default=GLOBAL_HEAD_DIM) if is_full else own.integer(size_key)
    if head_dim % 2:
        raise own.error(size_key, f"{head_dim} is odd: rotary positions need pairs")
    return {
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "rope_parameters": rope_parameters_of(kind, rope, config.integer("max_position_embeddings")),
        "sliding_window": None if is_full else config.integer("sliding_window"),
        "k_eq_v": k_eq_v,
    }


def weight_map(layers: list[dict[str, Any]]) -> WeightMap:
    """Names of a Hugging Face checkpoint of the text model. In the file of the model that sees images, too,
    `language_model.` stands before them, and the towers' tensors are left out."""
    theirs, ours = "model.layers.*", "layers.*"
    norms = [
        "input_layernorm",
        "post_attention_layernorm",
        *(f"pre_feedforward_layernorm{i}" for i in ("", "_2")),
        *(f"post_feedforward_layernorm{i}" for i in ("", "_1", "_2")),
    ]
    names = {
        "model.embed_tokens.weight": "embed_tokens.weight",
        **{f"{theirs}.{norm}.weight": f"{ours}.{norm}.weight" for norm in norms},
        **{f"{theirs}.self_attn.{x}_norm.weight": f"{ours}.self_attn.unscaled_{x}_norm.weight" for x in "qk"},
        f"{theirs}.self_attn.o_proj.weight": f"{ours}.self_attn.o_proj.linear.weight",
        f"{theirs}.mlp.down_proj.weight": f"{ours}.mlp.down_proj.linear.weight",
        f"{theirs}.router.proj.weight": f"{ours}.router.gate.weight",
        f"{theirs}.router.scale": f"{ours}.router.norm.weight",
        f"{theirs}.router.per_expert_scale": f"{ours}.router.topk.per_expert_scale",
        f"{theirs}.experts.gate_up_proj": f"{ours}.experts.w13.weight",
        f"{theirs}.experts.down_proj": f"{ours}.experts.w2.weight",
        f"{theirs}.layer_scalar": f"{ours}.layer_scalar",
        "model.norm.weight": "signed_norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    packed = {
        f"{ours}.mlp.gate_up_proj.linear.weight": {
            f"{theirs}.mlp.{part}_proj.weight": layers[0]["intermediate_size"] for part in ("gate", "up")
        }
    }
    for i, layer in enumerate(layers):
        rows = {x: layer[f"num_{x}heads"] * layer["head_dim"] for x in ("", "kv_")}
        parts = {"q": rows[""], "k": rows["kv_"]} | ({} if layer["k_eq_v"] else {"v": rows["kv_"]})
        packed[f"layers.{i}.self_attn.qkv_proj.linear.weight"] = {
            f"model.layers.{i}.self_attn.{part}_proj.weight": count for part, count in parts.items()
        }
    towers = ("vision_tower", "embed_vision", "audio_tower", "embed_audio")
    ignored = tuple(f"model.{tower}{'.*' * depth}" for tower in towers for depth in TOWER_DEPTH)
    prefixes = {"model.": "model.language_model."}
    repeated = {"lm_head.weight": "model.embed_tokens.weight"}
    return WeightMap(names, packed, ignored, prefixes=prefixes, repeated=repeated)
