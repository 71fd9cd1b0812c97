"""Kernels of a gradient step in inference: every implementation against torch.autograd in float64."""

from collections import defaultdict

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.gradient_cases import (
    entropy,
    entropy_arguments,
    glu_grad_cases,
    norm_grad_cases,
    sliding_cases,
    sliding_grad_cases,
)
from tests.pointwise_cases import check, run, worst_row_error
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON, TRITON_DTYPE

# A lone token; a whole sequence; a window that is left, shorter than the queries, of two keys; odd tiles.
SHAPES = [(1, 3, 1, 4, 3), (7, 7, 3, 16, 7), (5, 40, 2, 24, 9), (70, 101, 2, 16, 33), (6, 9, 1, 16, 2)]
# A gradient reads the logarithm of a softmax's sum, about 4 here. Rounded to float32 it is off by up to 2
# eps, and with it all weights of a row, relatively; so are the scores, and a slope is what is left of two
# products.
FLOOR = defaultdict(lambda: 2, {("sliding_attention_grad", torch.float32): 12})
ATTENTION = [*sliding_cases(SHAPES), *sliding_grad_cases(SHAPES)]
CASES = [
    *ATTENTION,
    *norm_grad_cases([(1, 64), (7, 24), (3, 2, 40), (2, 1500)]),
    *glu_grad_cases([(1, 8), (7, 40), (3, 1100)]),
]
ROWS = [(1, 3, 1.0), (7, 997, 3.0), (4, 5000, 1.0), (5, 33, 12.0)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_autograd(case):
    """In one test of each call: the three ways of computing it, and of each its dtypes."""
    for impl, dtypes in (("reference", DTYPES), ("torch", [torch.float32])):
        for dtype in dtypes:
            _check(case, dtype, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_triton_against_autograd(impl, dtype):
    for case in CASES:
        _check(case, dtype, impl)


def _check(case, dtype, impl):
    """Rows of attention that are smaller than the mean row are held against that: the first token's gradient
    is exactly 0."""
    if not case.kernel.startswith("sliding"):
        check(case, dtype, impl)
        return
    args = case.make(dtype)
    references, outputs = (run(case.kernel, args, one) for one in ("reference", impl))
    for found, reference, exact in zip(outputs, references, case.answer(*args)):
        assert (found.dtype, found.shape) == (dtype, exact.shape)
        assert found.is_contiguous()
        limit = max(2 * _error(reference, exact), FLOOR[case.kernel, dtype] * torch.finfo(dtype).eps)
        assert _error(found, exact) <= limit, f"{case} {impl}"


def _error(found, exact):
    size = exact.norm(dim=-1)
    return ((found.double() - exact).norm(dim=-1) / size.clamp(min=size.mean())).max().item()


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_cross_entropy(rows, impl):
    for dtype in (torch.float32, TRITON_DTYPE):
        logits, targets = entropy_arguments(*rows)(dtype)
        nll, slope = kernels.cross_entropy(logits, targets, impl=impl)
        wanted_nll, wanted_slope = entropy(logits, targets)
        assert (nll.dtype, slope.dtype) == (torch.float32, dtype)
        assert slope.is_contiguous()
        torch.testing.assert_close(nll.double(), wanted_nll, rtol=2e-6, atol=2e-6)
        assert worst_row_error(slope, wanted_slope) < (2e-6 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_certain_target_keeps_its_gradient(impl):
    logits = torch.tensor([[9.0, 0.0, 1.0], [2.0, 30.0, 1.0]])
    nll, slope = kernels.cross_entropy(logits, torch.tensor([0, 1]), impl=impl)
    wanted_nll, wanted_slope = entropy(logits, torch.tensor([0, 1]))
    torch.testing.assert_close(nll.double(), wanted_nll, rtol=2e-3, atol=1e-7)
    torch.testing.assert_close(slope[0].double(), wanted_slope[0], rtol=2e-3, atol=0)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
@pytest.mark.parametrize("size", [0.0, 0.01, 1.0])
def test_clipped_sgd(size, impl):
    generator = torch.Generator().manual_seed(0)
    weight, grad = (torch.randn(3, 5, 7, generator=generator) for _ in range(2))
    grad *= size
    norm = grad.double().norm()
    wanted = weight.double() - 0.5 * grad.double() * (1 if norm < 2 else 2 / norm)
    found = kernels.clipped_sgd(weight, grad, 0.5, 2.0, impl=impl)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)


def test_reference_is_exact_in_float64():
    for case in CASES:
        args = case.make(torch.float64)
        for found, exact in zip(run(case.kernel, args, "reference"), case.answer(*args)):
            torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)


def test_calls_that_are_refused():
    q, k = torch.zeros(3, 1, 16), torch.zeros(2, 1, 16)
    with pytest.raises(ValueError, match="2 keys for 3 queries"):
        kernels.sliding_attention(q, k, k, 1.0, 4)
    with pytest.raises(ValueError, match="a window of 0 keys"):
        kernels.sliding_attention(k, k, k, 1.0, 0)
    with pytest.raises(KernelError, match="no tokens"):
        kernels.sliding_attention(k[:0], k, k, 1.0, 4, impl="torch")
    with pytest.raises(TypeError, match="at least float32"):
        kernels.clipped_sgd(k.bfloat16(), k.bfloat16(), 1.0, 1.0)
