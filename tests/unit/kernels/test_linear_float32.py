"""linear_float32: every implementation on this machine against an einsum in float64, closer than rounding
allows."""

from importlib import import_module

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import skinny
from tests.pointwise_cases import check, linear_float32_cases, worst_row_error
from tests.unit.kernels.implementations import GEMV, REFERENCE, TORCH, TRITON, TRITON_DTYPE

CASES = linear_float32_cases([(1, 64, 96), (7, 33, 5), (0, 8, 4), (20, 300, 17)])
# Several tiles of inputs, with a tail; outputs that end within a program's; none.
ONE_ROW = linear_float32_cases([(1, 4096, 6), (1, 1500, 17), (0, 8, 4)], rows_of_strides=False)
FEW_ROWS = linear_float32_cases([(1, 512, 64), (7, 1030, 130), (17, 300, 64), (32, 200, 65), (0, 8, 4)])
SPLIT = next(case for case in linear_float32_cases([(7, 1030, 130)]) if case.name.endswith("bias"))
HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", ONE_ROW, ids=str)
@pytest.mark.parametrize("impl", [GEMV])
def test_one_row_against_the_formula(case, impl):
    check(case, TRITON_DTYPE, impl)


@pytest.mark.parametrize("case", FEW_ROWS, ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_few_rows_against_the_formula(case, impl):
    check(case, TRITON_DTYPE, impl)


@pytest.mark.parametrize("impl", [TRITON])
def test_split_inputs_against_the_formula(impl, monkeypatch):
    """As many processors as a GPU has, so that inputs are split."""
    monkeypatch.setattr(skinny, "multiprocessors", lambda device: 132)
    assert skinny.tile_for(*SPLIT.make(TRITON_DTYPE)[:2]).splits > 1
    check(SPLIT, TRITON_DTYPE, impl)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_rounded_product_is_not_as_close(dtype):
    """What `check` allows for is less than what one rounding costs."""
    args = SPLIT.make(dtype)
    (exact,) = SPLIT.answer(*args)
    y, rounded = kernels.linear_float32(*args), kernels.linear(*args)
    assert y.dtype == torch.float32
    assert 100 * worst_row_error(y, exact) < worst_row_error(rounded, exact)
    assert torch.finfo(dtype).eps / 16 < worst_row_error(rounded, exact)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_float64_stays_so(case, impl):
    args = case.make(torch.float64)
    y = kernels.linear_float32(*args, impl=impl)
    torch.testing.assert_close(y, case.answer(*args)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("part", [1, 3 * 1030, 1 << 20])
def test_parts_of_a_weight_on_a_cpu(part, monkeypatch):
    """One row at a time, several with a rest, all."""
    monkeypatch.setattr(import_module("fastkernels.kernels.linear_float32"), "PART", part)
    check(SPLIT, torch.bfloat16, "torch")


@pytest.mark.parametrize("impl", [GEMV, TRITON])
def test_what_is_not_served_says_why(impl):
    x, weight = torch.ones(33, 4).half(), torch.ones(5, 4).half()
    with pytest.raises(KernelError, match=r"serves (one row|up to 32 rows), not 33"):
        kernels.linear_float32(x, weight, impl=impl)
    with pytest.raises(KernelError, match="serves float16 and bfloat16, not float32"):
        kernels.linear_float32(x[:1].float(), weight.float(), impl=impl)


def test_more_dimensions_and_no_bias_by_default():
    x, weight = torch.ones(2, 3, 4).bfloat16(), torch.ones(5, 4).bfloat16()
    assert torch.equal(kernels.linear_float32(x, weight), torch.full((2, 3, 5), 4.0))
