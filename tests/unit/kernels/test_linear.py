"""linear: every implementation on this machine against an einsum in float64."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import counters, gemv, linear_gemv, linear_tf32x3, linear_triton, skinny
from tests.pointwise_cases import check, linear_cases, worst_row_error
from tests.unit.kernels.implementations import GEMV, REFERENCE, TF32X3, TORCH, TRITON, TRITON_DTYPE

CASES = linear_cases([(1, 64, 96), (7, 33, 5), (0, 8, 4), (20, 300, 17)])
# Every kind of tile, tiles that end beyond the outputs or the inputs, rows that are no power of two.
FEW_ROWS = linear_cases(
    [(1, 4096, 3), (1, 4100, 5), (2, 512, 64), (7, 1500, 33), (8, 700, 6), (16, 640, 70), (17, 300, 64),
     (32, 1030, 130), (0, 8, 4)]
)  # fmt: skip
SPLIT = linear_cases([(1, 2100, 65), (8, 1100, 40), (16, 1024, 70), (32, 1100, 129)])
SPLIT_ARGUMENTS = next(case for case in linear_cases([(7, 1030, 130)]) if case.name.endswith("bias"))
# Inputs of one tile, of several, and with a tail; outputs that end within a program's.
ONE_ROW = [
    case
    for case in linear_cases([(1, 4096, 6), (1, 2100, 5), (1, 1500, 17), (1, 7, 6), (0, 8, 4)])
    if case.name.startswith("T")  # the others have more
]
ODD = next(case for case in ONE_ROW if case.name == "T1-K1500-N17-bias")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [TF32X3])
def test_float32_on_tensor_cores_against_the_formula(case, impl, monkeypatch):
    monkeypatch.setattr(linear_tf32x3, "SMALLEST", 0)
    check(case, torch.float32, impl)


@pytest.fixture
def many_processors(monkeypatch):
    """As many as a GPU has, so that inputs are split."""
    monkeypatch.setattr(skinny, "multiprocessors", lambda device: 132)


@pytest.mark.parametrize("case", FEW_ROWS, ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_few_rows_against_the_formula(case, impl):
    check(case, TRITON_DTYPE, impl)


@pytest.mark.parametrize("case", SPLIT, ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_split_inputs_against_the_formula(case, impl, many_processors, monkeypatch):
    """Every call finds the counters at 0 and leaves them so, and repeats its answer bitwise."""
    monkeypatch.setattr(counters, "_of_stream", {})
    check(case, TRITON_DTYPE, impl)
    args = case.make(TRITON_DTYPE)
    first, again = kernels.linear(*args, impl=impl), kernels.linear(*args, impl=impl)
    assert torch.equal(first, again)
    assert not any(used.any() for used in counters._of_stream.values())


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("tile", [skinny.SMALL, skinny.TALL, skinny.WIDE])
@pytest.mark.parametrize("impl", [TRITON])
def test_every_split_of_every_tile(impl, tile, splits):
    """Also splits that have no inputs: 8 of 1,030 in tiles of 256."""
    x, weight, bias = SPLIT_ARGUMENTS.make(TRITON_DTYPE)
    exact = SPLIT_ARGUMENTS.answer(x, weight, bias)[0]
    y = linear_triton.launch(x, weight, bias, tile._replace(splits=splits))
    assert worst_row_error(y, exact) <= torch.finfo(TRITON_DTYPE).eps


@pytest.mark.parametrize("case", ONE_ROW, ids=str)
@pytest.mark.parametrize("impl", [GEMV])
def test_one_row_against_the_formula(case, impl):
    check(case, TRITON_DTYPE, impl)


@pytest.mark.parametrize("tile", [gemv.TILE, gemv.Tile(4, 2048, 4), gemv.Tile(8, 64, 1)])
@pytest.mark.parametrize("impl", [GEMV])
def test_tiles_of_one_row(impl, tile):
    """Of a strided x and weight; values beside them are not read."""
    x = torch.full((2, 1, 2500), torch.nan, dtype=TRITON_DTYPE)[1, :, 8:2108]
    weight = torch.full((9, 2200), torch.nan, dtype=TRITON_DTYPE)[:, 16:2116]
    x.copy_(torch.randn(1, 2100))
    weight.copy_(torch.randn(9, 2100) / 46)
    y = linear_gemv.launch(x, weight, None, tile)
    assert worst_row_error(y, x.double() @ weight.double().T) <= torch.finfo(TRITON_DTYPE).eps


@pytest.mark.parametrize("impl", [GEMV])
def test_one_row_of_any_shape(impl):
    x = torch.randn(3, 64).to(TRITON_DTYPE)[1, ::2]
    weight = (torch.randn(7, 32) / 6).to(TRITON_DTYPE)
    y = kernels.linear(x, weight, impl=impl)
    assert y.shape == (7,)
    assert worst_row_error(y[None], (x.double() @ weight.double().T)[None]) <= torch.finfo(TRITON_DTYPE).eps
    assert torch.equal(kernels.linear(x[None, None], weight, impl=impl), y[None, None])


@pytest.mark.parametrize("impl", [GEMV])
def test_bfloat16_in_one_row(impl):
    """The interpreter truncates to bfloat16, so twice the error of rounding."""
    args = ODD.make(torch.bfloat16)
    y, exact = kernels.linear(*args, impl=impl), ODD.answer(*args)[0]
    assert worst_row_error(y, exact) <= 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("impl", [GEMV])
def test_what_gemv_does_not_serve(impl):
    x, weight = torch.ones(5, 4).half(), torch.ones(5, 4).half()
    with pytest.raises(KernelError, match="serves one row, not 5"):
        kernels.linear(x, weight, impl=impl)
    with pytest.raises(KernelError, match="contiguous last dimension"):
        kernels.linear(x[:1], torch.ones(4, 5).half().T, impl=impl)
    with pytest.raises(KernelError, match="serves float16 and bfloat16, not float32"):
        kernels.linear(x[:1].float(), weight.float(), impl=impl)


def test_a_tile_of_gemv_is_no_wider_than_the_inputs():
    assert gemv.tile_of(4096) == gemv.TILE
    assert gemv.tile_of(100).inputs == 128
    assert gemv.tile_of(1).inputs == 8


def test_tiles_fill_the_processors_with_the_fewest_splits():
    def programs(rows, inputs, outputs):
        tile = skinny.tile_of(rows, inputs, outputs, 132)
        return -(-outputs // tile.outputs), tile.splits

    assert programs(8, 4096, 4096) == (64, 2)
    assert programs(32, 4096, 2048) == (32, 4)
    assert programs(32, 4096, 6144) == (96, 2)
    assert programs(16, 4096, 28672) == programs(32, 4096, 28672) == (224, 1)
    assert programs(1, 128, 64) == (1, 1)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_is_not_served_says_why(impl):
    x, weight = torch.ones(33, 4).half(), torch.ones(5, 4).half()
    with pytest.raises(KernelError, match="serves up to 32 rows, not 33"):
        kernels.linear(x, weight, impl=impl)
    with pytest.raises(KernelError, match="contiguous last dimension"):
        kernels.linear(x[:1], torch.ones(4, 5).half().T, impl=impl)
    with pytest.raises(KernelError, match="serves float16 and bfloat16, not float32"):
        kernels.linear(x[:1].float(), weight.float(), impl=impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    torch.testing.assert_close(
        kernels.linear(*args, impl="reference"), case.answer(*args)[0], rtol=1e-12, atol=1e-12
    )


def test_more_dimensions_and_no_bias_by_default():
    x, weight = torch.ones(2, 3, 4), torch.ones(5, 4)
    assert torch.equal(kernels.linear(x, weight), torch.full((2, 3, 5), 4.0))
