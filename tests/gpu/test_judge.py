"""What the judge does with inputs, on a GPU: the same bits as on a CPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels.audit.precision import narrow_sums, rounded
from fastkernels.judge.movements import of_equal_sums, of_sums, of_values

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

STEP = 2**-8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values_move_alike(dtype: torch.dtype) -> None:
    x = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(of_values(x.cuda(), STEP, 3).cpu(), of_values(x, STEP, 3))
    assert torch.equal(of_values(x.cuda().T, STEP, 3).cpu(), of_values(x.T, STEP, 3))


@pytest.mark.parametrize("movement", [of_sums, of_equal_sums])
def test_walks_stay_near(movement) -> None:
    """Steps are others there, their sizes are not."""
    x = torch.full((30, 4096), 3.0, dtype=torch.bfloat16)
    moves = [(movement(there, STEP, 3) / 3 - 1).abs().amax(-1).mean().item() for there in (x.cuda(), x)]
    assert 0 < moves[0] < 3 * moves[1] < 9 * moves[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_roundings_are_alike(dtype: torch.dtype) -> None:
    x = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    on_cpu, on_gpu = rounded(x, 3), rounded(x.cuda(), 3).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=0, equal_nan=True)
    undefined = torch.zeros(3, dtype=dtype, device="cuda") / 0  # NaN as a GPU writes it, all ones
    assert rounded(undefined, 3).isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(("rows", "inner"), [(64, 2048), (3, 2047), (100, 16)])
def test_sums_in_few_bits_are_alike(dtype: torch.dtype, batch: tuple, rows: int, inner: int) -> None:
    """Where float32 sums of a part differ, some are rounded the other way."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*batch, each, inner, generator=generator).to(dtype) for each in (rows, 130))
    exact = a.double() @ b.double().mT
    with narrow_sums(dtype):
        on_gpu, on_cpu = (a.cuda() @ b.cuda().mT).cpu(), a @ b.mT
    assert (on_gpu == on_cpu).double().mean() > 0.9
    errors = [float((found - exact).norm() / exact.norm()) for found in (on_gpu, on_cpu)]
    assert errors[0] == pytest.approx(errors[1], rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 4096, 3), (200, 2047, 2), (1, 300_000, 1), (7, 16, 9)])
def test_totals_in_few_bits_are_alike(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 1
    for keepdim in (False, True):
        with narrow_sums(dtype):
            on_gpu, on_cpu = (each.mean(1, keepdim=keepdim) for each in (x.cuda(), x))
        assert on_gpu.shape == on_cpu.shape
        assert (on_gpu.cpu() == on_cpu).double().mean() > 0.5
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=0.02, atol=1e-3)
