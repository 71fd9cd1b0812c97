"""What generation_config.json says is how prompts without parameters are continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fastkernels import LLM, SamplingParams, registry
from fastkernels.engine.core.sampling_params import default_params
from fastkernels.errors import FileFormatError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.weights import export_weights

PROMPTS = [[3, 4, 5], [7]]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny model's folder."""
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(registry.architecture("llama").configs["tiny"].config))
    weights = load_model(find("llama"), Overlay.over_baseline(), torch.device("cpu"), torch.float32, seed=0)
    save_file({name: t.contiguous() for name, t in export_weights(weights)}, path / "model.safetensors")
    return path


def says(folder: Path, **fields: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return folder


def texts(llm: LLM, *params: SamplingParams) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(PROMPTS, *params)]


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({}, SamplingParams()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
            SamplingParams(temperature=0.6, top_k=20, top_p=0.9, min_p=0.01),
        ),
        (
            {"repetition_penalty": 1.3, "max_new_tokens": 30, "temperature": None},
            SamplingParams(repetition_penalty=1.3, max_tokens=30),
        ),
        ({"temperature": 0.6, "do_sample": False}, SamplingParams(temperature=0.0)),
        ({"do_sample": None, "num_beams": 4, "eos_token_id": 2}, SamplingParams()),
    ],
    ids=["nothing", "sampling", "others", "greedy", "without-effect"],
)
def test_they_are_the_defaults(model, fields, params):
    """As vLLM takes them; a prompt with parameters of its own is continued by these alone."""
    llm, other = (LLM(says(model, **fields), device="cpu", max_num_seqs=2) for _ in range(2))
    assert llm.get_default_sampling_params() == params
    assert texts(llm) == texts(other, params)
    greedy = SamplingParams(temperature=0.0, max_tokens=3)
    assert texts(llm, greedy) == texts(other, greedy)
    llm.add_request(PROMPTS[0])
    other.add_request(PROMPTS[0], params)
    ends = []
    for loop in (llm, other):
        while loop.has_unfinished_requests():
            ends += [out.outputs[0].token_ids for out in loop.step()]
    assert ends[0] == ends[1]


def test_an_older_config_says_it_itself(model, tmp_path):
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "temperature": 0.7, "top_k": 5}))
    assert default_params(find(tmp_path)) == SamplingParams(temperature=0.7, top_k=5)
    assert default_params(find(says(tmp_path, top_p=0.5))) == SamplingParams(top_p=0.5)


def test_any_of_several_ids_ends_a_text(model):
    says(model, eos_token_id=[2, 9], do_sample=False, max_new_tokens=40)
    long = texts(
        LLM(model, device="cpu", max_num_seqs=2), SamplingParams(0.0, max_tokens=40, ignore_eos=True)
    )
    stops = [long[0][5], long[1][3]]
    ended = texts(LLM(says(model, eos_token_id=stops, do_sample=False, max_new_tokens=40), device="cpu"))
    for whole, text in zip(long, ended, strict=True):
        first = next(i for i, token in enumerate(whole) if token in stops)
        assert text == whole[: first + 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.6"),
        ("temperature", -1),
        ("top_k", 2.5),
        ("top_p", 0),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
        ("do_sample", "yes"),
        ("do_sample", 0),
    ],
)
def test_a_wrong_field_is_named(model, field, value):
    with pytest.raises(FileFormatError, match=rf"generation_config\.json, {field}: .*must be"):
        LLM(says(model, **{field: value}), device="cpu")
