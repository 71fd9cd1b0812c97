"""What a configuration leaves out is what transformers' class of its model_type takes for it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.loader.class_defaults import completed, transformers_class
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import ModelSource, build, find
from fastkernels.registry.schema import Architecture

KNOWN = [
    (entry, name)
    for entry in registry.architectures()
    for name, one in entry.configs.items()
    if one.size == "tiny" and transformers_class(one.config["model_type"])
]


def made(entry: Architecture, config: dict[str, Any]) -> Any:
    """Shapes of the model's parameters and buffers, and its caches; or why there is no such model."""
    source = ModelSource("", entry, config, None)
    try:
        model = build(source, Overlay.over_baseline(), torch.device("meta"), torch.float32)
    except UsageError as error:
        return str(error)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return shapes, [getattr(module, "cache", None) for module in model.modules()]


def kept(config: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Of `whole` what `config` has, in the sections too."""
    return {
        key: kept(value, whole[key]) if isinstance(value, Mapping) else whole[key]
        for key, value in config.items()
    }


@pytest.mark.parametrize(("entry", "name"), KNOWN, ids=lambda value: getattr(value, "id", value))
def test_each_field_of_a_registered_configuration_may_be_left_out(entry: Architecture, name: str):
    """The model is that of the configuration as transformers' class reads it."""
    whole, models = entry.configs[name].config, 0
    for key in whole.keys() - {"model_type", "architectures"}:
        config = {k: v for k, v in whole.items() if k != key}
        ours = completed(config)
        assert kept(config, ours) == config, "what is there stays"
        found = made(entry, ours)
        try:
            theirs = transformers_class(config["model_type"]).from_dict(copy.deepcopy(config)).to_dict()
        except StrictDataclassError:
            assert isinstance(found, str), f"{key}: transformers refuses it"
            continue
        assert found == made(entry, theirs), key
        models += isinstance(found, tuple)
    assert models > 5


def test_sections_are_completed_by_their_own_classes():
    """Those with a model_type, and those that a class declares."""
    config = completed({"model_type": "siglip2", "vision_config": {"hidden_size": 1152}})
    assert config["vision_config"]["hidden_size"] == 1152
    assert config["vision_config"]["num_patches"] == 256
    assert completed({"model_type": "siglip2"})["vision_config"]["hidden_size"] == 768
    vision = completed({"model_type": "qwen2_vl", "vision_config": {"model_type": "qwen2_vl", "depth": 2}})[
        "vision_config"
    ]
    assert vision["model_type"] == "qwen2_vl", "as in the published file"
    assert (vision["depth"], vision["embed_dim"]) == (2, 1280)
    assert "vocab_size" not in vision, "no field of the whole"
    config = completed({"transformer": {"num_layers": 2}, "text_encoder_2": {"model_type": "t5"}})
    assert config["transformer"] == {"num_layers": 2}
    assert config["text_encoder_2"]["relative_attention_max_distance"] == 128


def test_a_fields_other_name_counts():
    assert completed({"model_type": "mixtral", "num_experts": 4})["num_local_experts"] == 4
    assert (
        completed({"model_type": "mixtral", "num_experts": 4, "num_local_experts": 2})["num_local_experts"]
        == 2
    )


def test_null_and_what_transformers_does_not_know_stay():
    assert completed({"model_type": "mistral", "sliding_window": None})["sliding_window"] is None
    assert "sliding_window" not in completed({"model_type": "mixtral"})
    for config in ({"model_type": "gla", "hidden_size": 8}, {"model_type": 5}, {"hidden_size": 8}):
        assert completed(config) == config


def test_what_another_library_registers_is_not_transformers(monkeypatch):
    """As fla does when it is imported."""

    class Theirs(PreTrainedConfig):
        model_type = "mamba"

    monkeypatch.setattr(CONFIG_MAPPING, "_extra_content", {})
    before = completed({"model_type": "mamba"})
    AutoConfig.register("mamba", Theirs, exist_ok=True)
    assert CONFIG_MAPPING["mamba"] is Theirs
    assert completed({"model_type": "mamba"}) == before
    assert before["state_size"] == 16


def test_a_folder_and_a_dictionary_are_completed_and_a_registered_configuration_is_not(tmp_path):
    config = {k: v for k, v in find("llama").config.items() if k != "rms_norm_eps"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find(tmp_path).config["rms_norm_eps"] == find(config).config["rms_norm_eps"] == 1e-6
    assert find(tmp_path).config["hidden_size"] == 64
    entry = registry.architecture("llama")
    assert find("llama").config == {"dtype": "float32", **entry.configs["tiny"].config}


def test_what_has_no_default_is_an_error_that_names_it():
    entry = registry.architecture("gla")
    config = {k: v for k, v in entry.configs["tiny"].config.items() if k != "hidden_size"}
    assert made(entry, completed(config)) == "Model configuration, hidden_size: is missing"
