"""linear_glu: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import counters, linear_glu_triton, skinny
from tests.pointwise_cases import check, linear_glu_cases, worst_row_error
from tests.unit.kernels.implementations import GEMV, REFERENCE, TRITON, TRITON_DTYPE

# `parts` rounds up to four times, which a row of few outputs would not average out.
CASES = linear_glu_cases([(1, 64, 96), (7, 33, 45), (0, 8, 4)])
# Inputs of one tile, of several, and with a tail; outputs that end within a program's.
ONE_ROW = linear_glu_cases(
    [(1, 4096, 3), (1, 2100, 5), (1, 1500, 9), (1, 7, 6), (0, 8, 4)], two_strides=False
)
# Every kind of tile, tiles that end beyond the pairs or the inputs, rows that are no power of two.
FEW_ROWS = linear_glu_cases(
    [(1, 512, 16), (2, 700, 3), (7, 1030, 33), (12, 320, 70), (16, 130, 32), (17, 300, 64), (32, 200, 65),
     (0, 8, 4)]
)  # fmt: skip
SPLIT = next(case for case in linear_glu_cases([(7, 1030, 70)]) if case.name.endswith("bias"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, "parts"])
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


@pytest.mark.parametrize("splits", [1, 3, 8])
@pytest.mark.parametrize("tile", [skinny.SMALL, skinny.TALL, skinny.WIDE])
@pytest.mark.parametrize("impl", [TRITON])
def test_every_split_of_every_tile(impl, tile, splits, monkeypatch):
    """Counters are found at 0 and left so, also by splits that have no inputs: 8 of 1,030 in tiles of 256."""
    monkeypatch.setattr(counters, "_of_stream", {})
    args = SPLIT.make(TRITON_DTYPE)
    y = linear_glu_triton.launch(*args, tile._replace(splits=splits))
    assert worst_row_error(y, SPLIT.answer(*args)[0]) <= 2 * torch.finfo(TRITON_DTYPE).eps
    assert torch.equal(y, linear_glu_triton.launch(*args, tile._replace(splits=splits)))
    assert not any(used.any() for used in counters._of_stream.values())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    torch.testing.assert_close(
        kernels.linear_glu(*args, impl="reference"), case.answer(*args)[0], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("impl", [GEMV])
def test_what_gemv_does_not_serve(impl):
    x, weight = torch.ones(5, 4).half(), torch.ones(6, 4).half()
    with pytest.raises(KernelError, match="serves one row, not 5"):
        kernels.linear_glu(x, weight, None, "silu", impl=impl)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_is_not_served_says_why(impl):
    x, weight = torch.ones(33, 4).half(), torch.ones(6, 4).half()
    with pytest.raises(KernelError, match="serves up to 32 rows, not 33"):
        kernels.linear_glu(x, weight, None, "silu", impl=impl)
    with pytest.raises(KernelError, match="contiguous last dimension"):
        kernels.linear_glu(x[:1], torch.ones(4, 6).half().T, None, "silu", impl=impl)
    with pytest.raises(KernelError, match="serves float16 and bfloat16, not float32"):
        kernels.linear_glu(x[:1].float(), weight.float(), None, "silu", impl=impl)


def test_bad_calls():
    x, weight = torch.ones(5, 4), torch.ones(6, 4)
    with pytest.raises(ValueError, match="gelu_tanh"):
        kernels.linear_glu(x, weight, None, "relu")  # pyright: ignore
