"""What a caller may ask for."""

from __future__ import annotations

import math

import pytest

from fastkernels.engine.params import SamplingParams
from fastkernels.errors import RequestError


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"top_k": -2},
        {"top_k": 1.5},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"seed": 2**63},
        {"seed": 0.5},
        {"stop": ""},
        {"stop": ["a", 3]},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": ["a"]},
        {"logprobs": -1},
        {"logprobs": 10**6},
    ],
    ids=str,
)
def test_wrong_parameters_are_named(wrong):
    (name,) = wrong
    with pytest.raises(RequestError, match=f"^{name}="):
        SamplingParams(**wrong)


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
