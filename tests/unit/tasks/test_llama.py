"""Which model a Hugging Face configuration selects, and the errors for those that we lack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.llama import LlamaForCausalLM, layer_arguments, layer_windows

from fastkernels.errors import UsageError
from fastkernels.loader.class_defaults import completed
from fastkernels.nn.cache import Paged, cache_groups
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.weights import export_weights

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def layer(**changes: Any) -> dict[str, Any]:
    return layer_arguments(ConfigReader(completed(BASE | changes)))


def windows(**changes: Any) -> list[int | None]:
    return layer_windows(ConfigReader(completed(BASE | changes)))


def built(**changes: Any) -> LlamaForCausalLM:
    with torch.device("meta"):
        return LlamaForCausalLM(completed(BASE | changes))


def test_llama():
    assert layer() == {
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_position": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "qkv_bias": False,
        "mlp_bias": False,
        "qk_norm_eps": None,
        "bias_o_proj": False,
    }
    assert layer(num_key_value_heads=None)["num_kv_heads"] == 4
    assert layer(head_dim=32)["head_dim"] == 32
    assert layer(hidden_act="gelu_pytorch_tanh")["hidden_act"] == "gelu_tanh"
    assert layer(mlp_bias=True)["mlp_bias"]


def test_qwen2_has_a_bias_that_its_configuration_does_not_mention():
    assert layer(model_type="qwen2")["qkv_bias"]
    assert layer(model_type="qwen2")["qk_norm_eps"] is None
    names = dict(export_weights(built(model_type="qwen2")))
    assert "model.layers.2.self_attn.k_proj.bias" in names
    assert "model.layers.2.self_attn.o_proj.bias" not in names


def test_qwen3_normalises_heads_of_its_own_size():
    assert layer(model_type="qwen3")["head_dim"] == 128
    assert layer(model_type="qwen3", head_dim=32)["qk_norm_eps"] == 1e-5
    names = dict(export_weights(built(model_type="qwen3", head_dim=32)))
    assert names["model.layers.0.self_attn.q_norm.weight"].shape == (32,)
    assert names["model.layers.0.self_attn.q_proj.weight"].shape == (4 * 32, 64)
    assert names["model.layers.0.self_attn.o_proj.weight"].shape == (64, 4 * 32)


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("window", "changes"),
    [
        (8, {"model_type": "mistral", "sliding_window": 8}),
        (None, {"model_type": "mistral", "sliding_window": None}),
        (4096, {"model_type": "mistral"}),
        (8, {"model_type": "mistral", "sliding_window": 8, "head_dim": None}),
        (8, {"model_type": "mistral", "sliding_window": 8, "layer_types": [SLIDING] * 3}),
        (None, {"model_type": "qwen2", "sliding_window": 8}),
        (None, {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": False}),
        (8, {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}),
        (
            None,
            {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
        ),
        (
            8,
            {
                "model_type": "qwen3",
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": [SLIDING] * 3,
            },
        ),
        (None, {"model_type": "qwen3", "layer_types": [FULL] * 3}),
        (None, {"model_type": "llama", "sliding_window": None, "layer_types": [FULL] * 3}),
    ],
)
def test_windows(window: int | None, changes: dict[str, Any]):
    assert windows(**changes) == [window] * 3
    size = changes.get("head_dim") or (128 if changes["model_type"] == "qwen3" else 16)
    assert cache_groups(built(**changes)) == [Paged((2, size), window)]


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ([None, 8, 8], {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 1}),
        ([None, 4096, 4096], {"model_type": "qwen2", "max_window_layers": 1}),
        ([None] * 3, {"model_type": "qwen2"}),  # max_window_layers is 28 then
        ([None, 8, None], {"model_type": "qwen3", "sliding_window": 8, "layer_types": [FULL, SLIDING, FULL]}),
        ([8, None, 8], {"model_type": "qwen2", "sliding_window": 8, "layer_types": [SLIDING, FULL, SLIDING]}),
        ([None] * 3, {"model_type": "qwen2", "sliding_window": None, "max_window_layers": 1}),
    ],
)
def test_windows_in_some_layers(expected: list[int | None], changes: dict[str, Any]):
    assert windows(use_sliding_window=True, **changes) == expected
    layers = built(use_sliding_window=True, **changes).layers
    assert [layer.self_attn.attn.cache.window for layer in layers] == expected


def test_attention_bias_is_on_all_four_projections():
    for model_type in ("llama", "qwen3"):
        names = dict(export_weights(built(model_type=model_type, attention_bias=True)))
        biases = {name for name in names if name.startswith("model.layers.1.") and name.endswith("bias")}
        assert biases == {f"model.layers.1.self_attn.{part}_proj.bias" for part in "qkvo"}


def test_tied_embeddings_are_one_parameter():
    tied, untied = built(tie_word_embeddings=True), built()
    assert tied.lm_head.linear.weight is tied.embed_tokens.embedding.weight
    assert set(dict(export_weights(untied))) - set(dict(export_weights(tied))) == {"lm_head.weight"}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("model_type", {"model_type": "mixtral"}),
        ("model_type", {"model_type": None}),
        ("hidden_size", {"hidden_size": None}),
        ("hidden_size", {"hidden_size": 65}),
        ("vocab_size", {"vocab_size": "256"}),
        ("num_hidden_layers", {"num_hidden_layers": 0}),
        ("num_key_value_heads", {"num_key_value_heads": 3}),
        ("head_dim", {"head_dim": 15}),
        ("hidden_act", {"hidden_act": "relu2"}),
        ("attention_bias", {"model_type": "mistral", "attention_bias": True}),
        ("attention_bias", {"attention_bias": "yes"}),
        ("quantization_config", {"quantization_config": {"quant_method": "fp8"}}),
        ("tie_word_embeddings", {"tie_word_embeddings": "no"}),
        ("rope_scaling.type", {"rope_scaling": {"type": "longrope"}}),
        ("sliding_window", {"sliding_window": 8}),
        ("sliding_window", {"model_type": "mistral", "sliding_window": 0}),
        ("layer_types", {"layer_types": [SLIDING] * 3}),
        ("layer_types", {"layer_types": [FULL] * 2}),
        ("layer_types", {"layer_types": ["chunked_attention"] * 3}),
        ("layer_types", {"model_type": "mistral", "sliding_window": 8, "layer_types": [FULL] * 3}),
        ("layer_types", {"model_type": "mistral", "sliding_window": 8, "layer_types": [FULL, SLIDING, FULL]}),
        ("layer_types", {"model_type": "qwen3", "layer_types": [FULL, SLIDING, FULL]}),
        ("max_window_layers", {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1}),
    ],
)
def test_what_we_lack_is_an_error_that_names_the_key(key: str, changes: dict[str, Any]):
    with pytest.raises(UsageError, match=f"^Model configuration, {key}: "):
        built(**changes)


def test_keys_that_do_not_concern_us_are_ignored():
    assert (
        layer(architectures=["X"], torch_dtype="bfloat16", use_cache=True, attention_dropout=0.0) == layer()
    )
