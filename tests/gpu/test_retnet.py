"""RetNet on a GPU: its scan at the real model's size, replayed steps against eager ones, 16 bits against
float32 along its tokens.

That float32 agrees with the CPU, in graphs and with chunks, is in test_engine.py.
"""

from __future__ import annotations

import statistics

import pytest
import torch

from fastkernels import SamplingParams
from fastkernels.kernels import registered
from tests.gla_case import GlaCase, check, make, worst

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

from tests.gpu import test_mamba as recurrent

pytestmark = pytest.mark.gpu

HEADS, KEY, VALUE = 10, 256, 512
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def case_of(lens: tuple[int, ...], dtype: torch.dtype) -> GlaCase:
    return make(lens, HEADS, KEY, VALUE, dtype, steepness=None).to("cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1,), (37, 1, 64), (130,)], ids=str)
@pytest.mark.parametrize("impl", ["reference", "torch", "triton", "fla"])
def test_chunks_against_the_recurrence(impl: str, lens: tuple[int, ...], dtype: torch.dtype):
    case = case_of(lens, dtype)
    args = (case.q_THK, case.k_THK, case.v_THV, None, case.state_RHKV, case.rows_B)
    if reason := registered["chunk_gla"].why_not(impl, args):
        pytest.skip(reason)
    check(case, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("impl", ["reference", "triton", "fla"])
def test_steps_against_the_recurrence(impl: str, rows: int, dtype: torch.dtype):
    case = case_of((1,) * rows, dtype)
    args = (case.q_THK, case.k_THK, case.v_THV, None, case.state_RHKV, case.rows_B)
    if reason := registered["recurrent_gla"].why_not(impl, args):
        pytest.skip(reason)
    check(case, impl, recurrent=True)


def test_two_thousand_tokens_are_those_of_the_reference():
    """Float32 powers over many chunks, beside the exact shares that the recurrence multiplies by."""
    case = case_of((2000, 7), torch.float32)
    (o, state), (expected_o, expected_state) = case.run("triton"), case.run("reference")
    assert worst(o, expected_o.double().cpu()) < 1e-5
    assert worst(state[case.rows_B], expected_state[case.rows_B].double().cpu()) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_steps_are_eager_ones(dtype: str):
    replayed = recurrent.make("retnet", dtype)
    eager = recurrent.make("retnet", dtype, enforce_eager=True)
    assert recurrent.texts(replayed) == recurrent.texts(eager)
    assert replayed.stats()["graph_replays"] > 0
    assert eager.stats()["graph_replays"] == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_choose_the_tokens_of_float32(dtype: str):
    forced = recurrent.texts(recurrent.make("retnet", "float32"))
    greedy = SamplingParams(temperature=0.0)
    found = recurrent.texts(recurrent.make("retnet", dtype), greedy, forced=forced)
    shares = [statistics.fmean(map(int.__eq__, a, b)) for a, b in zip(found, forced, strict=True)]
    assert statistics.fmean(shares) > 0.95
