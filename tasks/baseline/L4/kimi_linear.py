"""Decoder-only language model of Kimi Delta Attention with some latent attention, and experts: Kimi Linear.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

    layer_i        latent attention where linear_attn_config.full_attn_layers has i + 1, else Kimi Delta
                   Attention; a dense block in the first first_k_dense_replace layers, else experts

T tokens, D hidden, V vocabulary. No positions anywhere: the states carry the order. Parameters, activations
and paged caches have the dtype of the module; A_log, the bias of the routing, states and logits are float32.
`config` is the model's Hugging Face configuration, complete.
Mirrors vllm.model_executor.models.kimi_linear.KimiLinearForCausalLM; `forward` returns hidden states,
`compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.decoder_weights import gated_mlp_weights
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.experts_config import expert_arguments, expert_weights
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.kda_decoder_layer import DenseKDADecoderLayer, KDADecoderLayer, MLADecoderLayer

# Of the norm of the latents: the default of the class that the checkpoint's own code has, not rms_norm_eps.
KV_NORM_EPS = 1e-6
LINEAR, FULL = "linear_attention", "full_attention"


class KimiLinearForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        reader.choice("model_type", {"kimi_linear": None})
        reader.choice("hidden_act", {"silu": None})
        reader.choice("moe_router_activation_func", {"sigmoid": None}, default="sigmoid")
        reader.refuse(["attention_bias", "quantization_config", "q_lora_rank", "num_nextn_predict_layers"],
                      neutral=(None, False, 0))  # fmt: skip
        reader.refuse(["mla_use_nope"], neutral=(None, True))
        reader.refuse(["moe_layer_freq"], neutral=(None, 1))
        reader.refuse(["num_expert_group", "topk_group"], neutral=(None, 1))
        hidden_size, eps = reader.integer("hidden_size"), reader.number("rms_norm_eps")
        kda, mla, moe = kda_arguments(reader), mla_arguments(reader), moe_arguments(reader)
        vocab_size, width = reader.integer("vocab_size"), reader.integer("intermediate_size")

        def layer(kind: str, is_dense: bool) -> nn.Module:
            if kind == FULL:
                return MLADecoderLayer(hidden_size, mla, moe, eps)
            if is_dense:
                return DenseKDADecoderLayer(hidden_size, kda, width, eps)
            return KDADecoderLayer(hidden_size, kda, moe, eps)

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(layer(*kinds) for kinds in layer_kinds(reader))
        self.norm = RMSNorm(hidden_size, eps)
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        dense = sum(is_dense for _, is_dense in layer_kinds(reader))
        self.weight_map = weight_map(kda, mla, moe, hidden_size, width, dense)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]"""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the batch calls."""
        return language_model(self, batch)


def layer_kinds(config: ConfigReader) -> list[tuple[str, bool]]:
    """(kind of attention, whether the block behind it is dense) of each layer; a UsageError names the key
    that is wrong."""
    layers, linear = config.integer("num_hidden_layers"), config.section("linear_attn_config")
    kinds = [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)]  # as transformers has it
    if linear.has("full_attn_layers"):
        full, delta = (set(linear.integers(key)) for key in ("full_attn_layers", "kda_layers"))
        if full & delta or full | delta != set(range(1, layers + 1)):
            raise linear.error(
                "full_attn_layers", f"with kda_layers, must name each of the layers 1 to {layers} once"
            )
        kinds = [FULL if i + 1 in full else LINEAR for i in range(layers)]
    dense = config.integer("first_k_dense_replace", default=1, minimum=0)
    if FULL in kinds[:dense]:
        raise config.error("first_k_dense_replace", "latent attention with a dense block is not supported")
    return [(kind, i < dense) for i, kind in enumerate(kinds)]


def kda_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every Kimi Delta Attention, less hidden_size and epsilon."""
    linear = config.section("linear_attn_config")
    names = {
        "num_heads": ("num_heads", "linear_num_heads"),
        "head_dim": ("head_dim", "linear_head_dim"),
        "conv_size": ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    }
    return {
        name: linear.integer(key) if linear.has(key) else config.integer(other)
        for name, (key, other) in names.items()
    }


def either(config: ConfigReader, key: str, other: str) -> str:
    """The name that a checkpoint has for a field of transformers' class, if it is there; else the field's."""
    return key if config.has(key) else other


def mla_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every latent attention, less hidden_size."""
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    return {
        "num_heads": config.integer("num_attention_heads"),
        **{name: config.integer(name) for name in names},
        "kv_norm_eps": KV_NORM_EPS,
    }


def moe_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of the experts of a layer, less hidden_size."""
    experts = either(config, "num_experts", "num_local_experts")
    chosen = either(config, "num_experts_per_token", "num_experts_per_tok")
    width = config.integer("moe_intermediate_size")
    return {
        **expert_arguments(config, experts, chosen),
        "intermediate_size": width,
        "shared_intermediate_size": width
        * config.integer(either(config, "num_shared_experts", "n_shared_experts")),
        "renormalize": config.flag(either(config, "moe_renormalize", "norm_topk_prob"), default=True),
        "routed_scaling_factor": config.number("routed_scaling_factor"),
    }


def weight_map(
    kda: dict[str, Any],
    mla: dict[str, Any],
    moe: dict[str, Any],
    hidden_size: int,
    width_of_dense: int,
    dense: int,
) -> WeightMap:
    """Names of a Hugging Face checkpoint. Which of them a layer has depends on its kinds.

    Experts are called w1 (gate), w3 (up) and w2 (down). transformers renames tensors as it loads a
    checkpoint, and back as it saves one, where it gives dense blocks the name of those of experts.
    """
    theirs, ours = "model.layers.*", "layers.*"
    attn, block = f"{theirs}.self_attn", f"{theirs}.block_sparse_moe"
    keys, rank, heads = kda["num_heads"] * kda["head_dim"], kda["head_dim"], kda["num_heads"]
    q_rows = mla["num_heads"] * (mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"])
    names = {
        "model.embed_tokens.weight": "embed_tokens.embedding.weight",
        f"{theirs}.input_layernorm.weight": f"{ours}.input_layernorm.weight",
        f"{theirs}.post_attention_layernorm.weight": f"{ours}.post_attention_layernorm.weight",
        f"{attn}.f_b_proj.weight": f"{ours}.self_attn.f_b_proj.linear.weight",
        f"{attn}.g_b_proj.weight": f"{ours}.self_attn.g_b_proj.linear.weight",
        f"{attn}.A_log": f"{ours}.self_attn.A_log",
        f"{attn}.dt_bias": f"{ours}.self_attn.dt_bias",
        f"{attn}.o_norm.weight": f"{ours}.self_attn.o_norm.weight",
        f"{attn}.o_proj.weight": f"{ours}.self_attn.o_proj.linear.weight",
        f"{attn}.kv_a_layernorm.weight": f"{ours}.self_attn.kv_a_layernorm.weight",
        f"{attn}.kv_b_proj.weight": f"{ours}.self_attn.kv_b_weight",
        f"{block}.gate.weight": f"{ours}.mlp.gate.weight",
        f"{block}.gate.e_score_correction_bias": f"{ours}.mlp.e_score_correction_bias",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    delta = {"q_proj": keys, "k_proj": keys, "v_proj": keys, "f_a_proj": rank, "g_a_proj": rank}
    latent = {"q_proj": q_rows, "kv_a_proj_with_mqa": mla["kv_lora_rank"] + mla["qk_rope_head_dim"]}
    packed = {
        f"{ours}.self_attn.in_proj.linear.weight": {
            f"{attn}.{name}.weight": rows for name, rows in (delta | {"b_proj": heads}).items()
        },
        f"{ours}.self_attn.fused_qkv_a_proj.weight": {
            f"{attn}.{name}.weight": rows for name, rows in latent.items()
        },
        f"{ours}.self_attn.conv_weight": {f"{attn}.{part}_conv1d.weight": keys for part in "qkv"},
    }
    dense_blocks = gated_mlp_weights(width_of_dense)
    shared = gated_mlp_weights(
        moe["shared_intermediate_size"], f"{block}.shared_experts", f"{ours}.mlp.shared_experts"
    )
    layer = moe | {"hidden_size": hidden_size}
    routed = expert_weights(layer, f"{block}.experts", f"{ours}.mlp.experts", ("w1", "w3", "w2"))
    others = WeightMap(
        names,
        packed,
        repeated={"lm_head.weight": "model.embed_tokens.weight"},
        prefixes={f"model.layers.{i}.mlp.": f"model.layers.{i}.block_sparse_moe." for i in range(dense)},
        vectors={f"{ours}.self_attn.A_log": (1, 1, -1, 1)},
    )
    return dense_blocks | shared | routed | others
