"""Decoder-only language model with ternary weights and activations of eight bits: BitNet b1.58.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h E^T)

T tokens, D hidden, V vocabulary. Every projection of a layer is ternary, and follows a norm: attention has
one before its output projection, the feed-forward block (of squared ReLU) before its last. Embedding, head
and norms are not quantised; parameters, activations and caches have the dtype of the module, scales and
logits are float32. `config` is the model's Hugging Face configuration, complete; without a
quantization_config the projections are ordinary ones.
Mirrors transformers.models.bitnet.BitNetForCausalLM; `forward` returns hidden states, `compute_logits` the
logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.kernels.ternary import PER_BYTE
from fastkernels.nn.attention_config import attention_arguments
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.ternary_weights import Ternary
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.decoder_layer import DecoderLayer

ACTIVATIONS = {"relu2": "relu2"}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# What a file's scales are, by the class that it names; without one the class is the first.
INVERTED = {"bitlinear": True, "autobitlinear": False}
# Matrices that are packed already, or ordinary ones.
MODES = {"offline": None, "online": None}


class BitNetForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        num_layers = reader.integer("num_hidden_layers")
        self.layers = nn.ModuleList(DecoderLayer(**layer) for _ in range(num_layers))
        self.norm = RMSNorm(hidden_size, layer["rms_norm_eps"])
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(layer, scales_are_inverted(reader))

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]"""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the batch calls."""
        return language_model(self, batch)


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every DecoderLayer; a UsageError names the key that is wrong or not supported."""
    config.choice("model_type", {"bitnet": None})
    config.refuse(["attention_bias"])
    eps = config.number("rms_norm_eps")
    layer = {
        **attention_arguments(config),
        "intermediate_size": config.integer("intermediate_size"),
        "rms_norm_eps": eps,
        "hidden_act": config.choice("hidden_act", ACTIVATIONS),
        "sub_norm_eps": eps,
        "quant_method": None if scales_are_inverted(config) is None else "bitnet",
    }
    if layer["quant_method"]:
        for key in ("hidden_size", "intermediate_size"):
            if layer[key] % PER_BYTE:
                raise config.error(key, f"{layer[key]} is no multiple of {PER_BYTE}, which a byte holds")
    return layer


def scales_are_inverted(config: ConfigReader) -> bool | None:
    """Whether a file's scales are divided by; None without quantisation."""
    if not config.has("quantization_config"):
        return None
    section = config.section("quantization_config")
    section.choice("quant_method", {"bitnet": None})
    section.choice("quantization_mode", MODES, default="offline")
    section.refuse(["use_rms_norm"])
    section.refuse(["modules_to_not_convert"], neutral=(None, ["lm_head"]))
    return section.choice("linear_class", INVERTED, default="bitlinear")


def weight_map(layer: dict[str, Any], inverted: bool | None) -> WeightMap:
    """Names of a Hugging Face checkpoint; query, key and value fill one matrix, gate and up another. Ternary
    ones hold four rows in one, and each has a scale."""
    packing = 1 if inverted is None else PER_BYTE
    q_rows, kv_rows = (layer[heads] * layer["head_dim"] // packing for heads in ("num_heads", "num_kv_heads"))
    gate_rows = up_rows = layer["intermediate_size"] // packing
    names = {
        "model.embed_tokens.weight": "embed_tokens.embedding.weight",
        "model.layers.*.input_layernorm.weight": "layers.*.input_layernorm.weight",
        "model.layers.*.self_attn.attn_sub_norm.weight": "layers.*.self_attn.attn_sub_norm.weight",
        "model.layers.*.self_attn.o_proj.*": "layers.*.self_attn.o_proj.linear.*",
        "model.layers.*.post_attention_layernorm.weight": "layers.*.post_attention_layernorm.weight",
        "model.layers.*.mlp.ffn_sub_norm.weight": "layers.*.mlp.ffn_sub_norm.weight",
        "model.layers.*.mlp.down_proj.*": "layers.*.mlp.down_proj.linear.*",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    attention, mlp = "layers.*.self_attn.qkv_proj.linear", "layers.*.mlp.gate_up_proj.linear"
    rows = {"q": q_rows, "k": kv_rows, "v": kv_rows}, {"gate": gate_rows, "up": up_rows}
    packed = {
        f"{ours}.{kind}": {
            f"model.{block}.{part}_proj.{kind}": count if kind == "weight" else 1
            for part, count in parts.items()
        }
        for ours, block, parts in zip((attention, mlp), ("layers.*.self_attn", "layers.*.mlp"), rows)
        for kind in ("weight", "weight_scale")
    }
    return WeightMap(
        names,
        packed,
        folding=None if inverted is None else Ternary(PROJECTIONS, inverted),
        repeated={"lm_head.weight": "model.embed_tokens.weight"},
    )
