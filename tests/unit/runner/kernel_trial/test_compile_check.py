"""What torch.compile says of a candidate alone, and inside the nearest module that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.loader.materialize import build_module, task_class
from fastkernels.loader.overlay import Overlay
from fastkernels.records import REGISTRY, KernelRow
from fastkernels.registry import uses
from fastkernels.runner.kernel_trial.compile_check import parents
from fastkernels.runner.kernel_trial.request import KernelsRequest
from fastkernels.runner.kernel_trial.run import run_kernels
from fastkernels.runner.worker.worker_calls import Compiled
from fastkernels.runner.worker.worker_handle import WorkerHandle

HONEST = """
import torch
from torch import Tensor, nn

class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size))

    def forward(self, x: Tensor, residual: Tensor | None = None):
        if residual is not None:
            x = x + residual
        normed_TD = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        SPOT
        return normed_TD if residual is None else (normed_TD, x)
"""
SPOTS = {
    "honest": "pass",
    # With a residual it is called by its parent only: the case without one does not show it.
    "breaks_inside": "if residual is not None: torch._dynamo.graph_break()",
    # Every number of tokens is a constant of its trace.
    "recompiles": "for _ in range(x.shape[0]): normed_TD = normed_TD.contiguous()",
}


def rows(above: Path) -> dict[str, list[KernelRow]]:
    """By candidate, those of one run."""
    for name, spot in SPOTS.items():
        file = above / name / "L1" / "rms_norm.py"
        file.parent.mkdir(parents=True)
        file.write_text(HONEST.replace("SPOT", spot))
    report = run_kernels(
        KernelsRequest(
            targets=("rms_norm",),
            case_glob="llama-tiny-T128-D64-f32",
            size="tiny",
            device="cpu",
            candidates=tuple(str(above / name) for name in SPOTS),
            budget_s=0.02,
        )
    )
    for row in report.rows:
        assert row.verdict in ("PASSED", "UNSTABLE", "SKIPPED"), (row.case, row.verdict, row.failure)
    looked_at = [row for row in report.rows if row.verdict != "SKIPPED"]
    return {name: [row for row in looked_at if row.candidate == name] for name in SPOTS}


def test_the_parent_of_a_case_is_the_lowest_module_that_holds_it() -> None:
    norm = next(case for case in registry.cases("L1/rms_norm", "tiny") if "residual" not in case.inputs)
    assert {case.task for case in parents(norm)} == {"L3/decoder_layer"}
    glu = registry.cases("L1/glu", "tiny")[0]
    found = parents(glu)
    assert {case.task for case in found} == {"L2/gated_mlp"}
    assert len({next(iter(case.inputs.values())).shape for case in found}) == len(found) > 1
    assert parents(registry.cases("L4/llama", "tiny")[0]) == []


def test_every_case_that_no_architecture_makes_has_parents_or_none() -> None:
    """Any of them may be the last case of a variant, at which the column is made."""
    extra = [case for entry in registry.tasks() for case in registry.cases(entry)]
    extra = [case for case in extra if case.provenance.architecture == REGISTRY]
    found = [(case, parents(case)) for case in extra]
    assert any(above for case, above in found if case.task == "L1/glu")
    overlay = Overlay.over_baseline()
    for case, above in found:
        for parent in above:
            assert parent.task in uses.users(case.task, [parent.task])
            parts = build_module(overlay, parent, "meta").modules()
            assert task_class(overlay, case) in map(type, parts), (case.id, parent.id)
    assert all(parent.size == case.size for case, above in found for parent in above)


def test_compile_looks_inside_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of all: what is not a candidate's own is done once. Nobody waits for kernels to be built."""
    ran: dict[str, set[str]] = {}
    compiled = WorkerHandle.compiled

    def seen(handle: WorkerHandle, again: bool) -> Compiled:
        for kernel, name in handle.kernels.items():
            ran.setdefault(kernel, set()).add(name)
        return compiled(handle, again)

    monkeypatch.setattr(WorkerHandle, "compiled", seen)
    found = rows(tmp_path)
    assert {"rms_norm", "linear", "prefill_attention"} <= set(ran)
    assert set.union(*ran.values()) == {"reference"}
    for name, compile, detail in (
        ("honest", "ok", None),
        ("breaks_inside", "graph break", "inside L3/decoder_layer: "),
        ("recompiles", "recompiles", "sizes of calls are traced"),
    ):
        assert found[name], name
        for row in found[name]:
            assert row.compile == compile, (name, row.compile_detail)
            if detail is None:
                assert row.compile_detail is None, name
            else:
                assert detail in (row.compile_detail or ""), name
