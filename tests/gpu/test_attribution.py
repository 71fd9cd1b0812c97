"""Who made the kernels of a call, as the profiler of a GPU names them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastkernels.records import KernelReport
from fastkernels.runner.kernel_trial.request import KernelsRequest
from fastkernels.runner.kernel_trial.run import run_kernels

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

# Few rows by a kernel of its own, many by PyTorch.
BY_SHAPE = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _my_norm(x, weight, out, eps, D: tl.constexpr, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    inside = column < D
    at = tl.program_id(0) * D + column
    row = tl.load(x + at, inside, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row) / D + eps)
    tl.store(out + at, row * scale * tl.load(weight + column, inside, 0.0), inside)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size))

    def forward(self, x, residual=None):
        if residual is not None:
            x = x + residual
        if x.shape[0] <= 16 and residual is None:
            normed_TD, D = torch.empty_like(x), x.shape[-1]
            x = x.contiguous()
            _my_norm[(x.shape[0],)](x, self.weight, normed_TD, self.eps, D, triton.next_power_of_2(D))
        else:
            normed_TD = torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return normed_TD if residual is None else (normed_TD, x)
"""


def judged(folder: Path, **asked) -> KernelReport:
    (folder / "L1").mkdir()
    (folder / "L1" / "rms_norm.py").write_text(BY_SHAPE)
    return run_kernels(
        KernelsRequest(
            targets=("rms_norm",),
            case_glob="llama-tiny-T",
            candidates=(str(folder),),
            device="cuda",
            size="tiny",
            budget_s=0.2,
            compile_check=False,
            **asked,
        ).resolved()
    )


def test_every_case_has_its_own_kernels(tmp_path: Path) -> None:
    report = judged(tmp_path)
    few = next(row for row in report.rows if row.case == "llama-tiny-T16-D64-f32")
    many = next(row for row in report.rows if row.case == "llama-tiny-T128-D64-f32")
    assert few.kernels is not None
    assert [(kernel.name, kernel.origin) for kernel in few.kernels] == [("_my_norm", "authored")]
    assert many.kernels is not None
    assert {kernel.origin for kernel in many.kernels} == {"torch"}
    assert any("kernels that are not its own" in note and "at::native" in note for note in report.notes)


def test_the_track_authored_keeps_the_cases_that_are_its_own(tmp_path: Path) -> None:
    report = judged(tmp_path, track="authored")
    kept = {row.case for row in report.rows}
    assert "llama-tiny-T16-D64-f32" in kept
    assert "llama-tiny-T128-D64-f32" not in kept
    assert any("left out of the track `authored`" in note for note in report.notes)
