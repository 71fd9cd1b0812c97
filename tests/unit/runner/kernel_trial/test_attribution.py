"""Who made the kernels of each case: columns, notes, and what the track `authored` leaves out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastkernels.measure.attribution import Launched
from fastkernels.records import Case, KernelRow, KernelShare
from fastkernels.runner.kernel_trial import attribution
from fastkernels.runner.kernel_trial import run as run_module
from fastkernels.runner.kernel_trial.request import Job, KernelsRequest, plan
from fastkernels.runner.worker.pool import WorkerDied
from fastkernels.runner.worker.worker_calls import Trouble

VENDOR = KernelShare(name="nvjet_x", origin="vendor", share=0.7)
OWN = KernelShare(name="_norm_rows", origin="authored", share=0.3)


class Looked:
    """Workers that show what each case launches; None: its process dies."""

    def __init__(self, launched: dict[str, list[Launched] | None]) -> None:
        self._launched = launched
        self.seen: list[tuple[str, bool]] = []

    @contextlib.contextmanager
    def loaded(self, job: Job, case: Case, candidate: bool, again: bool = False) -> Iterator[Any]:
        assert candidate
        self.seen.append((case.id, again))
        found = self._launched[case.id]
        if found is None:
            raise Trouble("launched", WorkerDied("CRASHED", "gone", ""))

        class WorkerHandle:
            def launched(self) -> list[Launched]:
                return found

        yield WorkerHandle()


def row(case: str, *shares: KernelShare, verdict: str = "PASSED", task: str = "L1/rms_norm") -> KernelRow:
    own = sum(kernel.share for kernel in shares if kernel.origin == "authored")
    return KernelRow(
        task=task, variant="default", case=case, candidate="mine", verdict=verdict, contract="graph",
        origins={"authored": own, "vendor": 1 - own} if shares else None, kernels=shares or None,
    )  # fmt: skip


def test_what_is_not_its_own_is_named_with_its_largest_share() -> None:
    small = VENDOR.model_copy(update={"share": 0.1})
    rows = [row("a", OWN, small), row("b", OWN, VENDOR), row("c", OWN), row("d", VENDOR, verdict="CRASHED")]
    (note,) = attribution.foreign(rows)
    assert note.startswith("mine in L1/rms_norm")
    assert note.endswith(": nvjet_x (vendor, 70 %)")
    assert list(attribution.foreign([row("c", OWN)])) == []


def test_where_nothing_was_seen_is_said() -> None:
    (note,) = attribution.foreign([row("a", OWN), row("b")])
    assert "no kernel was seen in 1 case" in note


def test_a_case_is_left_out_by_its_own_shares() -> None:
    most = OWN.model_copy(update={"share": 0.9})
    rows = [row("own", most), row("other", VENDOR, OWN), row("wrong", verdict="WRONG(value)"), row("unseen")]
    assert [r.case for r in attribution.left_out(rows)] == ["other", "unseen"], (
        "what fails is no wrapper's pass"
    )


CANDIDATE = """
import triton
from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline

@triton.jit
def _norm_rows(x): ...

class RMSNorm(Baseline):
    pass
"""


@pytest.mark.parametrize("track", ["open", "authored"])
def test_every_case_has_its_own_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, track: Any) -> None:
    """A candidate that dispatches by shape; its last case says nothing of the others."""
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(CANDIDATE)
    request = KernelsRequest(
        targets=("rms_norm",),
        case_glob="llama-tiny-T",
        candidates=(str(tmp_path),),
        device="cpu",
        size="tiny",
    ).resolved()
    (job,) = plan(request)
    first, second, third, *rest = [work.case.id for work in job.works]
    own, other = [Launched("_norm_rows", 9), Launched("Memset (Device)", 1)], [Launched("nvjet_x", 5)]
    worker_set = Looked({first: own, second: other, third: None, **dict.fromkeys(rest, own)})
    run = run_module._Run(request.model_copy(update={"track": track}), lambda progress: None)
    run.rows = [
        row(case).model_copy(update={"candidate": job.name}) for case in (first, second, third, *rest)
    ]
    run._attribute(job, worker_set)  # pyright: ignore[reportArgumentType]
    assert [again for _, again in worker_set.seen] == [False] + [True] * (len(job.works) - 1)
    found = {r.case: r for r in run.rows}
    assert found[first].authored == 0.9
    assert found[first].kernels == (
        KernelShare(name="_norm_rows", origin="authored", share=0.9),
        KernelShare(name="Memset (Device)", origin="torch", share=0.1),
    )
    notes = "; ".join(run.notes)
    assert "nvjet_x (vendor, 100 %), Memset (Device) (torch, 10 %)" in notes
    assert "no kernel was seen in 1 case" in notes
    if track == "open":
        assert (found[second].authored, found[third].kernels) == (0.0, None)
    else:
        assert {second, third}.isdisjoint(found)
        assert "left out of the track `authored`: 2 rows" in notes
