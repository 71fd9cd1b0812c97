"""Rotary parameters of a Hugging Face configuration, in one spelling.

transformers 5       rope_parameters: {rope_type, rope_theta, factor, ...}
before               rope_theta: 500000.0, rope_scaling: {rope_type or type, factor, ...} or null
"""

from __future__ import annotations

from typing import Any

from fastkernels.nn.config import ConfigReader

_REQUIRED = {
    "default": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "proportional": ("partial_rotary_factor",),
}
_OPTIONAL = {"yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")}


def rope_parameters(config: ConfigReader, max_position: int) -> dict[str, Any]:
    """{rope_type, rope_theta, ...}: exactly the keys that the type uses, as JSON-able numbers."""
    config.refuse(["partial_rotary_factor"], neutral=(None, 1, 1.0))
    rope = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    key = "rope_type" if rope.has("rope_type") else "type"
    rope_type = rope.choice(key, {name: name for name in _REQUIRED}, default="default")
    unused = "factor" if rope_type == "proportional" else "partial_rotary_factor"
    rope.refuse([unused], neutral=(None, 1, 1.0))
    if nested := [name for name, value in rope.config.items() if isinstance(value, dict)]:
        raise rope.error(nested[0], "rotary parameters by layer type are not supported")
    theta = (rope if rope.has("rope_theta") else config).number("rope_theta")
    parameters: dict[str, Any] = {"rope_type": rope_type, "rope_theta": theta}
    for name in _REQUIRED[rope_type]:
        parameters[name] = rope.number(name)
    for name in _OPTIONAL.get(rope_type, ()):
        if rope.has(name):
            parameters[name] = rope.number(name)
    if rope_type == "yarn" and rope.has("truncate"):
        parameters["truncate"] = rope.flag("truncate")
    if rope_type in ("llama3", "yarn"):
        original = config.integer("original_max_position_embeddings", default=None)
        parameters["original_max_position_embeddings"] = original or rope.integer(
            "original_max_position_embeddings", default=max_position
        )
    return parameters


def rope_parameters_of(kind: str, config: ConfigReader, max_position: int) -> dict[str, Any]:
    """Of a configuration whose rope_parameters have a section for each kind of layer."""
    by_kind = config.section("rope_parameters")
    if not by_kind.has(kind):
        raise by_kind.error(kind, "is missing")
    section = by_kind.section(kind)
    return rope_parameters(ConfigReader({"rope_parameters": section.config}, f"{kind}."), max_position)


def reach(parameters: dict[str, Any], max_position: int) -> int:
    """Positions that the rotary table must cover: a yarn configuration may give the unstretched length."""
    if parameters["rope_type"] != "yarn":
        return max_position
    return max(max_position, int(parameters["factor"] * parameters["original_max_position_embeddings"]))
