"""RWKV-7 on a GPU: its kernels at the real heads, float32 and the CPU's tokens, replayed and eager steps, 16
bits along float32's tokens."""

from __future__ import annotations

import statistics
from functools import lru_cache

import pytest
import torch

from fastkernels import LLM, SamplingParams, kernels
from fastkernels.kernels import registered
from tests.mamba_cases import StateCase, check, worst
from tests.rwkv7_cases import LEAST, heads, layer, shift, wide

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

HEADS, SIZE = 5, 64
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def checked(case: StateCase, impl: str, is_update: bool = False) -> None:
    case = case.to("cuda")
    kernel = registered[case.kernels[is_update]]
    if reason := kernel.why_not(impl, case.arguments(is_update, case.state)):
        pytest.skip(reason)
    check(case, impl, is_update)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1,), (64,), (37, 1, 65), (200, 0, 16)], ids=str)
@pytest.mark.parametrize("impl", ["torch", "triton", "fla"])
def test_chunks_against_the_recurrence(impl: str, lens: tuple[int, ...], dtype: torch.dtype):
    checked(heads(lens, HEADS, SIZE, dtype), impl)


@pytest.mark.parametrize("w", [LEAST, -1e-3])
def test_the_ends_of_decay(w: float):
    checked(heads((200,), HEADS, SIZE, torch.bfloat16, w=w, a=0.9), "triton")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("impl", ["triton", "fla"])
def test_steps_against_the_recurrence(impl: str, rows: int, dtype: torch.dtype):
    checked(heads((1,) * rows, HEADS, SIZE, dtype), impl, is_update=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1, 1, 1), (9, 1, 30, 0)], ids=str)
def test_shifts(lens: tuple[int, ...], dtype: torch.dtype):
    checked(shift(lens, 2560, 6, dtype), "triton", is_update=max(lens) == 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "first"), [(1, False), (33, False), (2, True)])
def test_a_step_of_a_layer(rows: int, first: bool, dtype: torch.dtype):
    args, state = on_gpu(*layer(rows, HEADS, SIZE, dtype, first))
    args[9] = state
    exact = wide(args)
    expected = kernels.rwkv7_step(*exact, impl="reference")
    found = kernels.rwkv7_step(*args, impl="triton")
    assert worst(found, expected.cpu()) < TOLERANCE[dtype]
    torch.testing.assert_close(state.double(), exact[9], rtol=1e-4, atol=1e-4, equal_nan=True)


def on_gpu(args: list, state: torch.Tensor) -> tuple[list, torch.Tensor]:
    def moved(value):
        if isinstance(value, list):
            return [moved(one) for one in value]
        return value.cuda() if isinstance(value, torch.Tensor) else value

    return moved(args), state.cuda()


def test_a_product_of_parts():
    x = torch.randn(1, 3, 2560, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(2560 + 96 + 320, 2560, device="cuda", dtype=torch.bfloat16) * 2560**-0.5
    expected = kernels.linear_of_parts(x.double(), weight.double(), [2560, 96, 320], impl="reference")
    for impl in ("gemv", "torch"):
        found = kernels.linear_of_parts(x, weight, [2560, 96, 320], impl=impl)
        assert worst(found, expected.cpu()) < TOLERANCE[torch.bfloat16]


# ---------------------------------------------------------------- the engine


def texts(llm: LLM, params: SamplingParams = GREEDY, **options) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 256, (n,), generator=generator).tolist() for n in LENGTHS]
    return [out.outputs[0].token_ids for out in llm.generate(prompts, params, **options)]


def make(dtype: str, **options) -> LLM:
    return LLM("rwkv7", config="tiny", device="cuda", dtype=dtype, max_num_seqs=16, **options)


@lru_cache
def expected() -> list[list[int]]:
    return texts(LLM("rwkv7", config="tiny", device="cpu", max_num_seqs=16))


@pytest.mark.parametrize("options", [{}, {"enforce_eager": True}, {"max_num_batched_tokens": 22}], ids=str)
def test_float32_has_the_tokens_of_the_cpu(options: dict):
    llm = make("float32", **options)
    assert texts(llm) == expected()
    assert (llm.stats()["graph_replays"] > 0) == ("enforce_eager" not in options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_replay_what_they_compute_eagerly_and_choose_the_tokens_of_float32(dtype: str):
    llm = make(dtype)
    assert texts(llm) == texts(make(dtype, enforce_eager=True))
    found = texts(llm, SamplingParams(temperature=0.0), forced=expected())
    shares = [statistics.fmean(map(int.__eq__, a, b)) for a, b in zip(found, expected(), strict=True)]
    assert statistics.fmean(shares) > 0.95
