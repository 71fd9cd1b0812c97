"""What a caller may ask for."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.errors import RequestError


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": 10**400},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"top_p": None},
        {"top_k": -2},
        {"top_k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"seed": 2**63},
        {"seed": 0.5},
        {"stop": ""},
        {"stop": ["a", 3]},
        {"stop": ["a", ""]},
        {"stop": 5},
        {"stop": b"a"},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": 5},
        {"stop_token_ids": "ab"},
        {"stop_token_ids": [True]},
        {"stop_token_ids": ["a"]},
        {"logprobs": -1},
        {"logprobs": 10**6},
        {"logprobs": True},
        {"ignore_eos": 1},
        {"seed": math.inf},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"min_p": math.nan},
        {"min_tokens": -1},
        {"min_tokens": 17},
        {"min_tokens": 1.0},
        {"presence_penalty": 2.1},
        {"presence_penalty": math.nan},
        {"frequency_penalty": -math.inf},
        {"frequency_penalty": "a"},
        {"repetition_penalty": 0},
        {"repetition_penalty": math.inf},
        {"n": 0},
        {"n": 1.5},
        {"n": 10**9},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": True},
        {"include_stop_str_in_output": 1},
        {"skip_special_tokens": None},
    ],
    ids=str,
)
def test_wrong_parameters_are_named(wrong):
    (name,) = wrong
    with pytest.raises(RequestError, match=f"^{name}="):
        SamplingParams(**wrong)


def test_a_greedy_request_has_one_answer():
    assert SamplingParams(n=3).n == 3
    with pytest.raises(RequestError, match=r"^n=2: must be .* 1 with temperature 0"):
        SamplingParams(n=2, temperature=0.0)
    with pytest.raises(RequestError, match=f"^seed={2**63 - 1}: must be .* with n - 1 added"):
        SamplingParams(n=2, seed=2**63 - 1)


@pytest.mark.parametrize("name", ["best_of", "bad_words", "logit_bias", "allowed_token_ids", "temprature"])
def test_what_is_no_parameter_is_named(name):
    with pytest.raises(RequestError, match=f"takes no {name}; it takes temperature, top_p"):
        SamplingParams(**{name: None})
    assert replace(SamplingParams(n=2), n=3).n == copy.deepcopy(SamplingParams(n=3)).n == 3
    assert pickle.loads(pickle.dumps(SamplingParams(seed=4))) == SamplingParams(seed=4)


def test_request_error_is_a_value_error():
    with pytest.raises(ValueError, match="top_p"):
        SamplingParams(top_p=2)


def test_greedy_choice_needs_no_filter():
    assert not SamplingParams(temperature=0.0, top_k=5, top_p=0.5).is_filtered
    assert SamplingParams(top_k=5).is_filtered
    assert SamplingParams(top_p=0.5).is_filtered
    assert not SamplingParams(top_k=-1).is_filtered


def test_stop_strings_are_a_list():
    assert SamplingParams(stop="a").stop_strings == ["a"]
    assert SamplingParams(stop=["a", "b"]).stop_strings == ["a", "b"]
    assert SamplingParams().stop_strings == []


def test_numpy_numbers_are_numbers():
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), seed=np.int64(7), min_p=np.float64(0.1)
    )
    assert params.is_filtered
    assert params.is_penalised


def test_plain_parameters_ask_for_nothing_special():
    assert not SamplingParams().is_penalised
    assert not SamplingParams(min_tokens=3).is_penalised
    assert not SamplingParams(temperature=0.0, min_p=0.5).is_penalised, "the best id passes every min_p"
    for wanted in (
        {"min_p": 0.1},
        {"presence_penalty": 1},
        {"frequency_penalty": -1},
        {"repetition_penalty": 2},
    ):
        assert SamplingParams(**wanted).is_penalised


def test_tiny_temperature_is_greedy():
    assert SamplingParams(temperature=1e-9).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy
