"""Decoders with linear attention, as configurations and checkpoints of flash-linear-attention have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.weight_map import WeightMap

_ACTIVATIONS = {"swish": "silu", "silu": "silu"}
_NORM_EPS, _INTERMEDIATE_MULTIPLE = 1e-6, 256


def linear_attention_arguments(
    config: ConfigReader, expand_k: float, expand_v: float, hidden_ratio: float
) -> dict[str, Any]:
    """The arguments that layers of every kind have; a UsageError names the key that is wrong or not
    supported. The numbers are the defaults of the production configuration class."""
    config.refuse(["use_short_conv", "feature_map", "attn", "attnres_block_size", "quantization_config"])
    for key in ("use_output_gate", "elementwise_affine"):
        if not config.flag(key, default=True):
            raise config.error(key, "false is not supported")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_heads")
    if config.integer("num_kv_heads", default=num_heads) != num_heads:
        raise config.error("num_kv_heads", f"must be num_heads, {num_heads}: shared keys are not supported")
    ratio = config.number("hidden_ratio", default=hidden_ratio)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size", default=None)
        or _intermediate_size(hidden_size, ratio),
        "num_heads": num_heads,
        "key_dim": _head_dim(config, "expand_k", expand_k),
        "value_dim": _head_dim(config, "expand_v", expand_v),
        "norm_eps": config.number("norm_eps", default=_NORM_EPS),
        "hidden_act": config.choice("hidden_act", _ACTIVATIONS, default="swish"),
    }


def _intermediate_size(hidden_size: int, ratio: float) -> int:
    """Two thirds of ratio * hidden, as a gated block has three matrices, rounded up to a multiple."""
    wanted = int(hidden_size * ratio * 2 / 3)
    return -(-wanted // _INTERMEDIATE_MULTIPLE) * _INTERMEDIATE_MULTIPLE


def _head_dim(config: ConfigReader, key: str, default: float) -> int:
    """Features of one head: the hidden size times what the configuration expands it by, split over heads."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_heads")
    width = int(hidden_size * config.number(key, default=default))
    if not width or width % num_heads:
        raise config.error(key, f"gives {width} features, no multiple of num_heads, {num_heads}")
    return width // num_heads


def linear_attention_weights(
    config: ConfigReader,
    layer: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    read: Mapping[str, int] | None = None,
) -> WeightMap:
    """Names of a checkpoint; what reads the hidden states fills one matrix, gate and up another. A norm that
    is fused with its gate has another name there.

    names: more of them. read: more tensors that read the hidden states, with their rows.
    """
    keys, values = (layer["num_heads"] * layer[name] for name in ("key_dim", "value_dim"))
    head_norm = "g_norm_swish_gate" if config.flag("fuse_norm", default=True) else "g_norm"
    known = {
        "model.embeddings.weight": "embed_tokens.embedding.weight",
        "model.layers.*.attn_norm.weight": "layers.*.attn_norm.weight",
        f"model.layers.*.attn.{head_norm}.weight": "layers.*.attn.norm.weight",
        "model.layers.*.attn.o_proj.weight": "layers.*.attn.o_proj.linear.weight",
        "model.layers.*.mlp_norm.weight": "layers.*.mlp_norm.weight",
        "model.layers.*.mlp.down_proj.weight": "layers.*.mlp.down_proj.linear.weight",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    packed = {
        "layers.*.attn.in_proj.linear.weight": {
            "model.layers.*.attn.q_proj.weight": keys,
            "model.layers.*.attn.k_proj.weight": keys,
            "model.layers.*.attn.v_proj.weight": values,
            "model.layers.*.attn.g_proj.weight": values,
            **(read or {}),
        },
        "layers.*.mlp.gate_up_proj.linear.weight": {
            "model.layers.*.mlp.gate_proj.weight": layer["intermediate_size"],
            "model.layers.*.mlp.up_proj.weight": layer["intermediate_size"],
        },
    }
    repeated = {"lm_head.weight": "model.embeddings.weight"}
    return WeightMap({**known, **(names or {})}, packed, repeated=repeated)
