"""When a trial has a narrow interval, and yet no ratio; and what happened to its baseline."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastkernels.judge.verdict import Verdict
from fastkernels.measure import stats
from fastkernels.records import Contract, Failure
from fastkernels.runner.kernel_trial import trial as trial_module
from fastkernels.runner.kernel_trial.blocks import Blocks
from fastkernels.runner.kernel_trial.sampling import Sampled
from fastkernels.runner.kernel_trial.trial import Trial
from tests.unit.runner.kernel_trial.test_blocks import reading


def trial(contract: Contract) -> Trial:
    made = Trial.__new__(Trial)
    made._outcome = SimpleNamespace(contract=contract)  # type: ignore[assignment]
    return made


def blocks(other: float = 1.0, baseline_waits: bool = False, candidate_waits: bool = False) -> Blocks:
    """A' takes `other` times as long as A in every block, as steadily as clocks can."""
    found = Blocks()
    for index in range(40):
        found.add(
            index,
            reading(1000, waits=baseline_waits),
            reading(1000, waits=candidate_waits),
            reading(1000 * other, waits=baseline_waits),
        )
    return found


def test_what_has_no_ratio_has_times_all_the_same() -> None:
    noisy = Blocks()
    for index in range(9):
        noisy.add(index, reading(2000), reading(1000 if index % 2 else 4000), reading(2000))
    sampled = SimpleNamespace(blocks=noisy, interval=noisy.speedup())
    verdict = trial("host")._unstable(sampled)  # type: ignore[arg-type]
    assert (verdict.label, verdict.speedup) == ("UNSTABLE", None)
    assert verdict.failure is not None
    assert "(about 4 us, the baseline 2)" in verdict.failure.message
    assert "(about 1 us, the baseline 1" in (trial("eager")._without_ratio(blocks(1.13)) or "")


@pytest.mark.parametrize(
    ("contract", "other", "found"),
    [("eager", 1.13, "differ by up to"), ("eager", 1.05, None), ("graph", 1.13, None), ("host", 1.13, None)],
)
def test_baselines_that_differ_leave_no_ratio_of_single_calls(contract, other: float, found) -> None:
    said = trial(contract)._without_ratio(blocks(other))
    assert said is None if found is None else found in said


def test_a_baseline_that_waits_leaves_none_however_well_two_processes_agree() -> None:
    said = trial("eager")._without_ratio(blocks(baseline_waits=True))
    assert said is not None
    assert "the host's work is in its time" in said
    assert trial("eager")._without_ratio(blocks(candidate_waits=True)) is None


def sampled_by(factor: float, scatter: float, decision: str = "unstable", samples: int = 40) -> Sampled:
    """The candidate takes `factor` of the baseline's time, all with calls that scatter."""
    found, generator = Blocks(), np.random.default_rng(2)
    for index in range(samples):
        a, c, a2 = (1e6 * truth * generator.lognormal(0, scatter) for truth in (1.0, factor, 1.0))
        found.add(index, reading(a), reading(c), reading(a2))
    return Sampled(found, Blocks(), Blocks(), found.speedup(), decision)  # type: ignore[arg-type]


def timed_on(monkeypatch: pytest.MonkeyPatch, sampled: Sampled, untrue: Verdict | None = None) -> Verdict:
    """What a trial on a CPU makes of these samples, where nothing else speaks against the candidate."""
    made = trial("host")
    made._held, made._bench = None, SimpleNamespace(device="cpu")  # type: ignore[assignment]
    made._runner = SimpleNamespace(idle_check=None, is_held=False)  # type: ignore[assignment]
    made._referee = SimpleNamespace(final=lambda: None)  # type: ignore[assignment]
    made._outcome.links, made._work = 1, None  # type: ignore[assignment]
    monkeypatch.setattr(trial_module, "Sampling", lambda *_: SimpleNamespace(run=lambda: sampled))
    monkeypatch.setattr(trial_module, "integrity", lambda *_: None)
    monkeypatch.setattr(trial_module, "ceilings", lambda device: None)
    monkeypatch.setattr(trial_module.roofline, "implausible", lambda *_: None)
    monkeypatch.setattr(made, "_broken_rule", lambda _: None)
    monkeypatch.setattr(made, "_untrue", lambda *_: untrue)
    return made._time()


def test_an_unstable_trial_keeps_what_it_saw_and_claims_nothing(monkeypatch) -> None:
    verdict = timed_on(monkeypatch, sampled_by(0.46, scatter=0.8))
    assert (verdict.label, verdict.speedup) == ("UNSTABLE", None)
    assert verdict.unclaimed is not None
    assert 1 < verdict.unclaimed.low < verdict.unclaimed.ratio < verdict.unclaimed.high
    assert verdict.unclaimed.baseline_us == pytest.approx(1000, rel=0.3)


def test_it_keeps_nothing_of_too_few_samples_or_of_what_may_be_untrue(monkeypatch) -> None:
    few = timed_on(monkeypatch, sampled_by(0.46, scatter=0.8, samples=stats.MIN_SAMPLES - 1))
    assert (few.label, few.unclaimed) == ("UNSTABLE", None)
    doubted = Verdict.failed("IMPLAUSIBLE", Failure(message="its windows say otherwise"))
    verdict = timed_on(monkeypatch, sampled_by(0.46, scatter=0.8), untrue=doubted)
    assert (verdict.label, verdict.unclaimed) == ("UNSTABLE", None)  # and accuses nobody on a busy machine
    assert timed_on(monkeypatch, sampled_by(0.46, 0.01, "budget"), untrue=doubted) == doubted


def baseline(**worker: Any) -> Any:
    """A worker whose process nobody rescheduled."""
    usual = {"alive": True, "meddled": None, "restless": None, "standing": lambda: None, "closed": False}
    made = SimpleNamespace(**{**usual, **worker})
    made.close = lambda: setattr(made, "closed", True)
    return SimpleNamespace(standing=None, worker=made)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("happened", "label"),
    [
        ({}, None),
        ({"meddled": "was stopped in its turn"}, "TAMPERED(baseline)"),
        ({"meddled": "was continued", "restless": "was continued"}, "TAMPERED(baseline)"),
        ({"restless": "did not stop within 10 s"}, "INVALID_BASELINE"),
        ({"alive": False, "restless": "did not stop within 10 s"}, None),
    ],
)
def test_a_baseline_whose_turns_were_not_its_own_is_told_and_replaced(happened, label, which: int) -> None:
    handles = [baseline(), baseline()]
    handles[which] = baseline(**happened)
    made = trial("host")
    made._runner = SimpleNamespace(a=handles[0], a2=handles[1])  # type: ignore[assignment]
    verdict = made._undisturbed()
    assert (verdict.label if verdict else None) == label
    assert [handle.worker.closed for handle in handles] == [label is not None and i == which for i in (0, 1)]


@pytest.mark.parametrize(
    ("contract", "is_held", "made"),
    [
        ("graph", True, "capture"),
        ("eager", True, "settle"),
        ("collective", True, "settle"),
        ("collective", False, None),
        ("host", True, None),
        ("host", False, None),
    ],
)
def test_results_are_held_by_the_links_that_are_asked_for_them_at_the_end(contract, is_held, made) -> None:
    """Others are made for what is timed on a device that is held: they know nothing of those before."""
    runner = SimpleNamespace(is_held=is_held, capture=lambda: "capture", settle=lambda: "settle")
    one = trial(contract)
    one._runner, one._held = runner, reading(1)  # type: ignore[assignment]
    assert one._linked() == made
    assert (one._held is None) == (made is not None)


def ended_by(error: Exception, monkeypatch, held: int) -> tuple[Any, Any]:
    """The outcome of a trial on a device of 80 that this error ends, and its line-up; the candidate's process
    holds so much, a baseline's 5."""
    free = [1]

    def process(holds: int) -> Any:
        made = baseline().worker
        made.close = lambda: (free.append(free.pop() + holds), setattr(made, "alive", False))
        return SimpleNamespace(standing=None, worker=made)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free[0], 80))
    one = trial("graph")
    runner = SimpleNamespace(a=process(5), c=process(held), a2=process(5), closed=False)
    runner.close = lambda: setattr(runner, "closed", True)
    one._runner, one._bench, one._case = runner, SimpleNamespace(device="cuda"), SimpleNamespace(ranks=1)  # type: ignore[assignment]
    one._outcome = SimpleNamespace(verdict=Verdict.passed(), died=False, notes=())  # type: ignore[assignment]
    one._referee = SimpleNamespace(worst=None, checked=0, notes=())  # type: ignore[assignment]

    def judge() -> Any:
        raise error

    one._judge = judge
    return one.run(), runner


@pytest.mark.parametrize(("held", "label"), [(5, "INVALID_BASELINE"), (60, "OOM")])
def test_a_judge_without_memory_ends_a_trial_and_no_run(held: int, label: str, monkeypatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.16 GiB")
    outcome, runner = ended_by(error, monkeypatch, held)
    assert outcome.verdict.label == label
    assert outcome.died is (label == "OOM"), "who fills the device again is not tried for ever"
    assert runner.closed


def test_any_other_error_of_the_judge_is_raised(monkeypatch) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        ended_by(RuntimeError("shapes do not match"), monkeypatch, held=60)
