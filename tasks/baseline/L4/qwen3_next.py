"""Decoder-only language model of Gated DeltaNet blocks with some gated attention, and experts in every layer.

    h = E[ids];  h = layer_i(h) for each i;  h = gemma_rms_norm(h; w_final);  logits = float32(h W_head^T)

    layer_i        gated attention where (i + 1) mod full_attention_interval = 0, else Gated DeltaNet
                   (or as layer_types says)

T tokens, D hidden, V vocabulary. Norms have a weight around zero, to which 1 is added, but that behind the
delta rule. Parameters, activations and paged caches have the dtype of the module; A_log, states and logits
are float32. `config` is the model's Hugging Face configuration, complete. Tensors of the head that predicts
further tokens (`mtp.*`) are left out.
Mirrors vllm.model_executor.models.qwen3_next.Qwen3NextForCausalLM; `forward` returns hidden states,
`compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.attention_config import head_arguments
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.decoder_weights import decoder_weights, gated_mlp_weights
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.experts_config import expert_arguments, expert_weights
from fastkernels.nn.weight_map import Source, WeightMap

from ..L1.rms_norm import GemmaRMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.delta_decoder_layer import DeltaDecoderLayer, GatedAttentionDecoderLayer

LINEAR, FULL = "linear_attention", "full_attention"


class Qwen3NextForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        reader.choice("model_type", {"qwen3_next": None})
        reader.choice("hidden_act", {"silu": None})
        reader.refuse(["attention_bias", "quantization_config"])
        reader.refuse(["mlp_only_layers"], neutral=(None, []))
        reader.refuse(["decoder_sparse_step"], neutral=(None, 1))
        hidden_size, eps = reader.integer("hidden_size"), reader.number("rms_norm_eps")
        linear, attention, moe = linear_arguments(reader), attention_arguments(reader), moe_arguments(reader)
        vocab_size = reader.integer("vocab_size")

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(
            DeltaDecoderLayer(hidden_size, linear, moe, eps)
            if kind == LINEAR
            else GatedAttentionDecoderLayer(hidden_size, attention, moe, eps)
            for kind in layer_types(reader)
        )
        self.norm = GemmaRMSNorm(hidden_size, eps)
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(linear, attention, moe, hidden_size)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]"""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual, positions)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the batch calls."""
        return language_model(self, batch)


def layer_types(config: ConfigReader) -> list[str]:
    """Of each layer; a UsageError names the key that is wrong."""
    layers = config.integer("num_hidden_layers")
    if not config.has("layer_types"):
        every = config.integer("full_attention_interval", default=4)  # transformers' own, which is no field
        return [LINEAR if (i + 1) % every else FULL for i in range(layers)]
    return config.names("layer_types", layers, (LINEAR, FULL))


def linear_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every Gated DeltaNet block, less hidden_size and epsilon."""
    keys, values = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    if values % keys:
        raise config.error(
            "linear_num_value_heads", f"{values} is no multiple of linear_num_key_heads, {keys}"
        )
    return {
        "num_k_heads": keys,
        "num_v_heads": values,
        "head_k_dim": config.integer("linear_key_head_dim"),
        "head_v_dim": config.integer("linear_value_head_dim"),
        "conv_kernel_size": config.integer("linear_conv_kernel_dim", minimum=2),
    }


def attention_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every gated attention, less hidden_size and epsilon. Files of before transformers 5
    have rope_theta and partial_rotary_factor beside the other keys; 0.25 is transformers' own default."""
    heads = head_arguments(config)
    rope = config.section("rope_parameters")
    rope.choice("rope_type", {"default": None}, default="default")
    theta, factor = (
        (rope if rope.has(key) else config).number(key, default=default)
        for key, default in (("rope_theta", None), ("partial_rotary_factor", 0.25))
    )
    if theta is None:
        raise config.error("rope_theta", "is missing")
    if int(heads["head_dim"] * factor) % 2 or factor > 1:
        raise rope.error("partial_rotary_factor", f"{factor} of {heads['head_dim']} features are no pairs")
    return {
        "num_heads": heads["num_heads"],
        "num_kv_heads": heads["num_kv_heads"],
        "head_dim": heads["head_dim"],
        "max_position": config.integer("max_position_embeddings"),
        "rope_parameters": {
            "rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor
        },
    }  # fmt: skip


def moe_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of the experts of every layer, less hidden_size."""
    return {
        **expert_arguments(config),
        "intermediate_size": config.integer("moe_intermediate_size"),
        "shared_intermediate_size": config.integer("shared_expert_intermediate_size"),
        "renormalize": config.flag("norm_topk_prob", default=True),
    }


def weight_map(
    linear: dict[str, Any], attention: dict[str, Any], moe: dict[str, Any], hidden_size: int
) -> WeightMap:
    """Names of a Hugging Face checkpoint. Which of them a layer has depends on its kind."""
    theirs, ours = "model.layers.*", "layers.*"
    # Rows of a head's query stand beside those of its gate.
    heads = attention | {"num_heads": 2 * attention["num_heads"]}
    shared = gated_mlp_weights(
        moe["shared_intermediate_size"], f"{theirs}.mlp.shared_expert", f"{ours}.mlp.shared_expert"
    )
    layer, experts = moe | {"hidden_size": hidden_size}, f"{theirs}.mlp.experts"
    routed = expert_weights(layer, experts, f"{ours}.mlp.experts", stacks=experts)
    names = {
        f"{theirs}.linear_attn.A_log": f"{ours}.linear_attn.A_log",
        f"{theirs}.linear_attn.dt_bias": f"{ours}.linear_attn.dt_bias",
        f"{theirs}.linear_attn.norm.weight": f"{ours}.linear_attn.norm.weight",
        f"{theirs}.linear_attn.conv1d.weight": f"{ours}.linear_attn.conv_weight",
        f"{theirs}.linear_attn.out_proj.weight": f"{ours}.linear_attn.out_proj.linear.weight",
        f"{theirs}.mlp.gate.weight": f"{ours}.mlp.gate.weight",
        f"{theirs}.mlp.shared_expert_gate.weight": f"{ours}.mlp.shared_expert_gate.weight",
    }
    pieces = {f"{ours}.linear_attn.in_proj.linear.weight": in_proj_pieces(f"{theirs}.linear_attn", linear)}
    return decoder_weights(heads) | shared | routed | WeightMap(names, ignored=MTP, pieces=pieces)


# The head that predicts further tokens; a star stands for one part of a name.
MTP = tuple(f"mtp.{'.'.join('*' * parts)}" for parts in range(1, 9))


def in_proj_pieces(theirs: str, linear: dict[str, Any]) -> list[Source]:
    """Rows of the one projection, [q | k | v | z | b | a]: a checkpoint has two, whose rows lie by heads of
    keys, [q | k | v | z] and [b | a] of each, with the values of all heads that share the keys."""
    shared = linear["num_v_heads"] // linear["num_k_heads"]
    keys, values = linear["head_k_dim"], shared * linear["head_v_dim"]
    found = []
    for name, parts in (("in_proj_qkvz", (keys, keys, values, values)), ("in_proj_ba", (shared, shared))):
        for i, rows in enumerate(parts):
            for head in range(linear["num_k_heads"]):
                first = head * sum(parts) + sum(parts[:i])
                found.append(Source(f"{theirs}.{name}.weight", rows, first))
    return found
