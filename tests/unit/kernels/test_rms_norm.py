"""rms_norm and add_rms_norm: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from tests.pointwise_cases import (
    add_rms_norm_cases,
    check,
    normalised,
    randn,
    rms_norm_cases,
    worst_row_error,
)
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON, TRITON_DTYPE

SHAPES = [(1, 64), (3, 7), (17, 33), (40, 128), (2, 2500), (0, 64), (5, 1)]
CASES = [*rms_norm_cases(SHAPES), *add_rms_norm_cases(SHAPES)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    """The gate compares with the reference; this anchors the reference itself."""
    args = case.make(torch.float64)
    out = kernels.registered[case.kernel](*args, impl="reference")
    for got, exact in zip(out if isinstance(out, tuple) else (out,), case.answer(*args), strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_without_a_weight_it_is_the_norm_with_ones(impl, dtype):
    for x in (randn(3, 7, dtype=dtype), randn(5, 192, dtype=dtype)[:, 64:128].view(5, 4, 16)):
        ones = torch.ones(x.shape[-1], dtype=dtype)
        y = kernels.rms_norm(x, None, 1e-6, impl=impl)
        assert y.is_contiguous()
        assert torch.equal(y, kernels.rms_norm(x, ones, 1e-6, impl=impl))
        assert worst_row_error(y, normalised(x, ones, 1e-6)) < 2 * torch.finfo(dtype).eps


def test_reference_casts_before_the_weight():
    """bf16(x / rms) * w, and not bf16(x / rms * w): what production checkpoints were trained with."""
    x, weight = randn(64, 256, dtype=torch.bfloat16), randn(256, dtype=torch.bfloat16, seed=1)
    x32 = x.float()
    normal = (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-5)).bfloat16()
    assert torch.equal(kernels.rms_norm(x, weight, 1e-5, impl="reference"), normal * weight)
    assert not torch.equal(normal * weight, (normal.float() * weight.float() * (1 + 2**-9)).bfloat16())


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_normalises_the_rounded_sum(impl):
    """Where rounding loses x wholly, the result is exactly that of the residual alone."""
    residual = torch.full((2, 64), 1024.0, dtype=torch.float16)
    residual[:, ::2] = -2048
    x = torch.full_like(residual, 0.125)
    weight = torch.ones(64, dtype=torch.float16)
    y, total = kernels.add_rms_norm(x, residual, weight, 1e-5, impl=impl)
    assert torch.equal(total, residual)
    assert torch.equal(y, kernels.rms_norm(residual, weight, 1e-5, impl=impl))


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_float32_residual_of_16_bit_tensors_keeps_what_they_add(impl):
    """The sum is float32 and normalised as such; only y is rounded."""
    dtype = TRITON_DTYPE
    x, weight = randn(5, 96, dtype=dtype)[:, 8:72], randn(64, dtype=dtype, seed=1) + 1
    residual = randn(5, 64, dtype=torch.float32, seed=2, scale=30)
    y, total = kernels.add_rms_norm(x, residual, weight, 1e-5, impl=impl)
    exact = x.double() + residual.double()
    assert (y.dtype, total.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(total, exact.float(), rtol=0, atol=0)
    assert worst_row_error(y, normalised(exact, weight, 1e-5)) < torch.finfo(dtype).eps
