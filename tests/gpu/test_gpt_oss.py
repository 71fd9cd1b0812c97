"""GPT-OSS on a GPU: replayed steps against eager ones, both devices against each other, and its experts'
kernels at the sizes of a real layer."""

from __future__ import annotations

import statistics

import pytest
import torch

from fastkernels import LLM, SamplingParams, kernels
from fastkernels.kernels.low_bit_dequant import low_bit_dequant
from tests.moe_cases import Shape, aligned, ids_of
from tests.pointwise_cases import randn, to_device, worst_row_error
from tests.unit.kernels.test_mxfp4 import ALPHA, MOST, block_arguments, packed

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

LENGTHS = (5, 17, 33, 2, 64, 1, 9, 40)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def make(dtype: str, device: str = "cuda", **options) -> LLM:
    return LLM("gpt_oss", config="tiny", device=device, dtype=dtype, max_num_seqs=16, **options)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 256, (n,), generator=generator).tolist() for n in LENGTHS]


def texts(llm: LLM, params: SamplingParams = GREEDY, **options) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(prompts(), params, **options)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_steps_are_eager_ones(dtype: str):
    replayed, eager = make(dtype), make(dtype, enforce_eager=True)
    assert texts(replayed) == texts(eager)
    assert replayed.stats()["graph_replays"] > 0
    assert eager.stats()["graph_replays"] == 0


def agreement(found: list[list[int]], forced: list[list[int]]) -> float:
    return statistics.fmean(
        statistics.fmean(map(int.__eq__, a, b)) for a, b in zip(found, forced, strict=True)
    )


def test_float32_chooses_the_tokens_of_a_cpu():
    """Chunked, and in graphs."""
    forced = texts(make("float32", "cpu"))
    llm = make("float32", max_num_batched_tokens=24)
    assert agreement(texts(llm, SamplingParams(temperature=0.0), forced=forced), forced) > 0.995


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_choose_the_tokens_of_float32(dtype: str):
    forced = texts(make("float32"))
    assert agreement(texts(make(dtype), SamplingParams(temperature=0.0), forced=forced), forced) > 0.9


# One token, a decode step's few, a middle and a large number of rows for an expert: each tile.
ROWS = [1, 2, 32, 257, 2048]


@pytest.mark.parametrize("tokens", ROWS)
@pytest.mark.parametrize("impl", ["triton", "torch"])
def test_products_by_experts(impl: str, tokens: int):
    """2880 inputs, which no power of two divides, of every expert that has a token."""
    shape = Shape(tokens, 32, 4, 5760, 2880)
    ids_TK = ids_of(shape)
    blocks, scales = packed(32, 5760, groups=90, scales=(119, 122))
    args = to_device(
        (
            randn(tokens, 2880, dtype=torch.bfloat16), blocks, scales,
            randn(32, 5760, dtype=torch.bfloat16, seed=1), *aligned(ids_TK, 32),
            randn(ids_TK.numel(), dtype=torch.float32, seed=2).abs(),
        ),
        "cuda",
    )  # fmt: skip
    if reason := kernels.registered["grouped_linear_mxfp4"].why_not(impl, args):
        pytest.skip(reason)
    x, blocks, scales, bias, _, _, weights = args
    y_SN = kernels.grouped_linear_mxfp4(*args, impl=impl)
    experts_S, tokens_S = ids_TK.flatten().cuda(), torch.arange(tokens, device="cuda").repeat_interleave(4)
    expected_SN = torch.empty(y_SN.shape, dtype=torch.float64, device="cuda")
    for e in range(32):
        mine = experts_S == e
        weight_NK = low_bit_dequant(blocks[e], scales[e], torch.float64, impl="reference")
        y = x[tokens_S[mine]].double() @ weight_NK.T + bias[e].double()
        expected_SN[mine] = y * weights[mine, None].double()
    limit = 3 if impl == "torch" else 1.5  # it rounds before the bias, too
    assert worst_row_error(y_SN, expected_SN) <= limit * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_expanded_as_the_reference_does(dtype: torch.dtype, impl: str):
    """Codes that are subnormal numbers on their way, too."""
    args = (*to_device(packed(7, 300, groups=9, scales=(67, 187)), "cuda"), dtype)
    assert torch.equal(
        kernels.low_bit_dequant(*args, impl=impl), kernels.low_bit_dequant(*args, impl="reference")
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("tokens", [1, 32, 300, 1200])
def test_a_block_of_experts_shares_launches_and_rounds_as_its_parts(tokens: int, dtype: torch.dtype):
    args = to_device(block_arguments(Shape(tokens, 8, 4, 96, 160), dtype), "cuda")
    fused = kernels.experts_mxfp4(*args, impl="triton")
    with kernels.use("triton"):
        parts = kernels.experts_mxfp4(*args, impl="parts")
    assert torch.equal(fused, parts)
    wide = tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
    limit = 0.03 if dtype == torch.float16 else 0.02  # large products are clamped where they were rounded
    assert worst_row_error(fused, kernels.experts_mxfp4(*wide, impl="reference")) <= (
        1e-5 if dtype == torch.float32 else limit
    )


@pytest.mark.parametrize("tokens", [32, 300, 1024, 8192])
def test_a_block_of_real_size_is_its_parts(tokens: int):
    """Once a tile made NaNs of a few results in 100,000, only with so many inputs."""
    args = to_device(block_arguments(Shape(tokens, 32, 4, 2880, 2880), torch.bfloat16), "cuda")
    with kernels.use("triton"):
        parts = kernels.experts_mxfp4(*args, impl="parts")
    assert bool(parts.isfinite().all())
    for _ in range(5):
        assert torch.equal(kernels.experts_mxfp4(*args, impl="triton"), parts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_clamped_glu(dtype: torch.dtype):
    x = randn(257, 5760, dtype=dtype, scale=6.0).cuda()
    expected = kernels.clamped_glu(x.double(), ALPHA, MOST, impl="reference")
    for impl in ("triton", "inductor"):
        y = kernels.clamped_glu(x, ALPHA, MOST, impl=impl)
        torch.testing.assert_close(y.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
