"""Reading Hugging Face configurations: types, defaults, and errors that name the key."""

from __future__ import annotations

from typing import Any

import pytest

from fastkernels.errors import UsageError
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.rope_config import reach, rope_parameters

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}


def test_values_and_defaults():
    reader = ConfigReader({"layers": 3, "eps": 1e-5, "theta": 5, "tie": True, "none": None, "act": "silu"})
    assert reader.integer("layers") == 3
    assert reader.integer("none", default=7) == 7
    assert reader.number("eps") == 1e-5
    assert isinstance(reader.number("theta"), float)
    assert reader.flag("tie")
    assert not reader.flag("none")
    assert reader.choice("act", {"silu": 1}) == 1
    assert reader.has("layers")
    assert not reader.has("none")


@pytest.mark.parametrize(
    ("config", "method", "message"),
    [
        ({}, "integer", "key: is missing"),
        ({"key": None}, "number", "key: is missing"),
        ({"key": 0}, "integer", "at least 1, not 0"),
        ({"key": True}, "integer", "at least 1, not True"),
        ({"key": "64"}, "integer", "not '64'"),
        ({"key": 1.5}, "integer", "not 1.5"),
        ({"key": -1.0}, "number", "positive number, not -1.0"),
        ({"key": float("nan")}, "number", "positive number, not nan"),
        ({"key": "yes"}, "flag", "true or false, not 'yes'"),
    ],
)
def test_errors_name_the_key(config: dict[str, Any], method: str, message: str):
    with pytest.raises(UsageError, match="Model configuration, key") as caught:
        getattr(ConfigReader(config), method)("key")
    assert message in str(caught.value)


def test_choices_refusals_and_sections():
    reader = ConfigReader({"act": "relu2", "bias": True, "off": False, "nested": {"x": "?"}, "text": "rope"})
    with pytest.raises(UsageError, match="act: 'relu2' is not supported; supported: silu, gelu"):
        reader.choice("act", {"silu": 0, "gelu": 1})
    reader.refuse(["off", "absent"])
    with pytest.raises(UsageError, match="bias: True is not supported"):
        reader.refuse(["bias"])
    with pytest.raises(UsageError, match=r"nested\.x: must be"):
        reader.section("nested").number("x")
    with pytest.raises(UsageError, match="text"):
        reader.section("text")
    with pytest.raises(UsageError, match="expected a dictionary, got 'llama'"):
        ConfigReader("llama")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_theta": 1.0, "rope_parameters": {"type": "llama3", "rope_theta": 5e5, **LLAMA3, "unused": 1}},
    ],
)
def test_both_spellings_of_rotary_parameters(config: dict[str, Any]):
    expected = {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}
    assert rope_parameters(ConfigReader(config), 256) == expected


@pytest.mark.parametrize(
    "config", [{}, {"rope_scaling": None}, {"rope_parameters": {"rope_type": "default"}}]
)
def test_plain_rotary_parameters(config: dict[str, Any]):
    reader = ConfigReader({**config, "rope_theta": 7.0})
    assert rope_parameters(reader, 256) == {"rope_type": "default", "rope_theta": 7.0}


def test_yarn_reaches_beyond_the_original_length():
    yarn = {"type": "yarn", "factor": 4, "truncate": False, "beta_fast": 32}
    config = {"rope_theta": 1e4, "rope_scaling": yarn}
    parameters = rope_parameters(ConfigReader(config), 32768)
    assert parameters["original_max_position_embeddings"] == 32768
    assert parameters["truncate"] is False
    assert parameters["beta_fast"] == 32.0
    assert reach(parameters, 32768) == 131072
    assert reach({"rope_type": "default", "rope_theta": 1.0}, 4096) == 4096


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling.type"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, "rope_parameters.rope_type"),
        (
            {"rope_theta": 1.0, "rope_scaling": {"type": "llama3", "factor": 8}},
            "rope_scaling.low_freq_factor",
        ),
        ({}, "rope_theta"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
        ({"rope_theta": "1e6"}, "rope_theta"),
    ],
)
def test_unsupported_rotary_parameters(config: dict[str, Any], key: str):
    with pytest.raises(UsageError, match=f"Model configuration, {key}: "):
        rope_parameters(ConfigReader(config), 256)
