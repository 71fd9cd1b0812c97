"""Gemma 4 on a GPU: replayed steps against eager ones, float32 against the CPU, 16 bits along its tokens, and
the fused kernels at the real model's sizes.
"""

from __future__ import annotations

import statistics

import pytest
import torch

from fastkernels import LLM, SamplingParams, kernels
from tests.moe_cases import Shape, aligned, ids_of
from tests.pointwise_cases import randn, run, to_device, worst_row_error
from tests.rope_store_case import make as rope_store_case
from tests.unit.kernels.test_norm_branches import join_case, split_case

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)  # the windows have 8 tokens
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)


def make(dtype: str, device: str = "cuda", **options) -> LLM:
    sizes = {"num_kv_cache_blocks": 200} if device == "cpu" else {}
    return LLM("gemma4", config="tiny", device=device, dtype=dtype, max_num_seqs=16, **sizes, **options)


def texts(llm: LLM, params: SamplingParams = GREEDY, **options) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 256, (n,), generator=generator).tolist() for n in LENGTHS]
    return [out.outputs[0].token_ids for out in llm.generate(prompts, params, **options)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_steps_are_eager_ones(dtype: str):
    replayed, eager = make(dtype), make(dtype, enforce_eager=True)
    assert texts(replayed) == texts(eager)
    assert replayed.stats()["graph_replays"] > 0
    assert eager.stats()["graph_replays"] == 0


def test_greedy_text_is_that_of_the_cpu():
    assert texts(make("float32")) == texts(make("float32", "cpu"))


@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 0.8), ("float16", 0.96)])
def test_16_bits_choose_the_tokens_of_float32(dtype: str, least: float):
    """On a CPU 0.89 of them in bfloat16, and 0.992 in float16."""
    forced = texts(make("float32"))
    found = texts(make(dtype), SamplingParams(temperature=0.0), forced=forced)
    shares = [statistics.fmean(map(int.__eq__, a, b)) for a, b in zip(found, forced, strict=True)]
    assert statistics.fmean(shares) > least


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 32, 257])
@pytest.mark.parametrize("make_case", [split_case, join_case])
def test_norms_around_branches(make_case, rows: int, dtype: torch.dtype):
    """They round where the norms one by one do: few elements differ, by the order of a sum."""
    case = make_case(rows, 2816)
    args = to_device(case.make(dtype), "cuda")
    for a, b in zip(run(case.kernel, args, "triton"), run(case.kernel, args, "reference"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5 if dtype == torch.float32 else 0.02, atol=0.02)
        if dtype != torch.float32:
            assert (a != b).float().mean() < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 16, 2, 512), (32, 16, 8, 256), (257, 16, 2, 512)], ids=str)
def test_norms_rotation_and_store(shape: tuple[int, int, int, int], dtype: torch.dtype):
    positions, q, k, v, *cache = rope_store_case((*shape, shape[-1]), dtype, "cuda")
    weights = (randn(shape[-1], dtype=dtype, seed=seed).cuda() + 1 for seed in (1, 2))
    args = (positions, q, k, v, *weights, 1e-6, *cache)
    results = []
    for impl in ("triton", "reference"):
        caches = args[8].clone(), args[9].clone()
        results.append((kernels.norm_rope_store_kv(*args[:8], *caches, args[10], impl=impl), *caches))
    for a, b in zip(*results, strict=True):
        near = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(a, b, rtol=near, atol=near, equal_nan=True)
        if dtype != torch.float32:
            assert (a != b)[b == b].float().mean() < 0.02


@pytest.mark.parametrize("tokens", [1, 32, 1031])
def test_the_first_product_of_experts_and_its_activation(tokens: int):
    order, starts = to_device(aligned(ids_of(Shape(tokens, 128, 8)), 128), "cuda")
    torch.manual_seed(0)
    x = torch.randn(tokens, 2816, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(128, 1408, 2816, device="cuda", dtype=torch.bfloat16) / 2816**0.5
    found = kernels.grouped_linear_glu(x, weight, order, starts, "gelu_tanh", impl="triton")
    wanted = kernels.grouped_linear_glu(
        x.float(), weight.float(), order, starts, "gelu_tanh", impl="reference"
    )
    assert worst_row_error(found, wanted.double().cpu()) < 2 * torch.finfo(torch.bfloat16).eps


def test_the_cap_of_all_logits():
    x = randn(32, 262144, dtype=torch.float32, scale=40).cuda()
    exact = 30 * torch.tanh(x.double() / 30)
    torch.testing.assert_close(kernels.softcap(x, 30.0, impl="triton").double(), exact, rtol=4e-7, atol=0)


def test_our_kernels_serve_the_real_models_calls():
    """Heads of 512 features, which libraries decline; heads of 256 in a window."""
    for heads, size, window in ((2, 512, 0), (8, 256, 1024)):
        cache = torch.zeros(9, 16, heads, size, device="cuda", dtype=torch.bfloat16)
        q = torch.zeros(4, 16, size, device="cuda", dtype=torch.bfloat16)
        lengths = torch.full((4,), 20, dtype=torch.int32, device="cuda")
        tables = torch.arange(1, 9, dtype=torch.int32, device="cuda").view(4, 2)
        args = (q, cache, cache, lengths, tables, 1.0, window, 32)
        assert kernels.registered["decode_attention"].why_not("triton", args) is None
        starts = torch.arange(5, dtype=torch.int32, device="cuda")
        args = (q, cache, cache, starts, lengths, tables, 1.0, window, 1, 32)
        assert kernels.registered["prefill_attention"].why_not("triton", args) is None
