"""Grouped-query attention, with rotary positions or without, as a Hugging Face configuration describes it."""

from __future__ import annotations

from typing import Any

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.rope_config import reach, rope_parameters


def attention_arguments(config: ConfigReader) -> dict[str, Any]:
    """What `head_arguments` gives, max_position and rope_parameters of a decoder layer; a UsageError names
    the key that is wrong."""
    heads = head_arguments(config)
    if heads["head_dim"] % 2:
        raise config.error("head_dim", f"{heads['head_dim']} is odd: rotary positions need pairs")
    max_position = config.integer("max_position_embeddings")
    rope = rope_parameters(config, max_position)
    if 2 * sum(rope.get("mrope_section", ())) not in (0, heads["head_dim"]):
        sections = rope["mrope_section"]
        raise config.error("mrope_section", f"{sections} do not make half of head_dim, {heads['head_dim']}")
    return {**heads, "max_position": reach(rope, max_position), "rope_parameters": rope}


def head_arguments(config: ConfigReader) -> dict[str, Any]:
    """hidden_size, num_heads, num_kv_heads and head_dim of a decoder layer."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads, {num_heads}"
        )
    head_dim = config.integer("head_dim", default=None)
    if head_dim is None:
        if hidden_size % num_heads:
            raise config.error(
                "hidden_size", f"{hidden_size} is no multiple of num_attention_heads, {num_heads}"
            )
        head_dim = hidden_size // num_heads
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
    }
