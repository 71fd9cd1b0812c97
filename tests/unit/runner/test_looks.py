"""What torch.compile says of a candidate alone, and inside the nearest module that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.runner.kernels import run_kernels
from fastkernels.runner.looks import parents
from fastkernels.runner.plan import KernelsRequest

HONEST = """
import torch
from torch import Tensor, nn

class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size))

    def forward(self, x_TD: Tensor, residual_TD: Tensor | None = None):
        if residual_TD is not None:
            x_TD = x_TD + residual_TD
        normed_TD = x_TD * torch.rsqrt(x_TD.square().mean(-1, keepdim=True) + self.eps) * self.weight
        SPOT
        return normed_TD if residual_TD is None else (normed_TD, x_TD)
"""
# With a residual it is called by its parent only: the case without one does not show it.
BREAKS_INSIDE = "if residual_TD is not None: torch._dynamo.graph_break()"
# Every number of tokens is a constant of its trace.
RECOMPILES = "for _ in range(x_TD.shape[0]): normed_TD = normed_TD.contiguous()"


def rows(tmp_path: Path, spot: str):
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(HONEST.replace("SPOT", spot))
    report = run_kernels(
        KernelsRequest(
            targets=("rms_norm",),
            case_glob="llama-tiny-T64-D64-f32",
            size="tiny",
            device="cpu",
            candidates=(str(tmp_path),),
            budget_s=0.02,
        )
    )
    for row in report.rows:
        assert row.verdict in ("PASSED", "UNSTABLE", "SKIPPED"), (row.case, row.verdict, row.failure)
    return [row for row in report.rows if row.verdict != "SKIPPED"]


def test_the_parent_of_a_case_is_the_lowest_module_that_holds_it() -> None:
    norm = next(case for case in registry.cases("L1/rms_norm", "tiny") if "residual" not in case.inputs)
    assert {case.task for case in parents(norm)} == {"L3/decoder_layer"}
    glu = registry.cases("L1/glu", "tiny")[0]
    found = parents(glu)
    assert {case.task for case in found} == {"L2/gated_mlp"}
    assert len({next(iter(case.inputs.values())).shape for case in found}) == len(found) > 1
    assert parents(registry.cases("L4/llama", "tiny")[0]) == []


@pytest.mark.parametrize(
    ("spot", "compile", "detail"),
    [
        ("pass", "ok", None),
        (BREAKS_INSIDE, "graph break", "inside L3/decoder_layer: "),
        (RECOMPILES, "recompiles", "sizes of calls are traced"),
    ],
)
def test_compile_looks_inside_the_parent(tmp_path: Path, spot: str, compile: str, detail: str | None) -> None:
    found = rows(tmp_path, spot)
    assert found
    for row in found:
        assert row.compile == compile, row.compile_detail
        assert row.compile_detail == detail or detail in row.compile_detail
