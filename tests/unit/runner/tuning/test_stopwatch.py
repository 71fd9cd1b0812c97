"""What one process sees of a case."""

import math

import pytest
import torch

from fastkernels import kernels, registry
from fastkernels.errors import KernelError
from fastkernels.kernels import plans
from fastkernels.kernels.base import forced
from fastkernels.kernels.choice import Implementation
from fastkernels.runner.tuning import stopwatch
from fastkernels.runner.tuning.calls import alone
from fastkernels.runner.tuning.look import NOT_ALIKE, difference, look
from fastkernels.runner.tuning.stopwatch import Stopwatch, Timed

CASE = next(c for c in registry.cases("rms_norm", "tiny") if c.timed and "residual" not in c.inputs)


@pytest.fixture
def implementations(monkeypatch):
    """Those of rms_norm, with these functions beside them."""

    def add(**functions) -> None:
        kernel = kernels.registered["rms_norm"]
        own = {n: Implementation(n, f, devices=("cpu",)) for n, f in functions.items()}
        monkeypatch.setattr(kernel, "_by_name", {**kernel._by_name, **own})

    return add


def test_a_look_compares_results_and_leaves_out_what_cannot_serve(implementations) -> None:
    reference = kernels.registered["rms_norm"].reference

    def failing(*args):
        raise ValueError("no such kernel. Try another")

    implementations(wrong=lambda *args: reference(*args) * 1.5, failing=failing)
    told = []
    found = look(CASE, "cpu", frozenset({("rms_norm", "skipped")}), False, lambda *one: told.append(one[:2]))
    (called,) = found.called
    assert (called.kernel, called.chosen, called.dtype) == ("rms_norm", "torch", CASE.dtype)
    assert called.size == math.prod(CASE.inputs["x"].shape[:-1])
    assert list(called.served) == ["torch", "reference", "wrong"], "the table's choice first; no GPU here"
    assert called.served["torch"] == 0
    assert called.served["reference"] < 1e-3
    assert called.served["wrong"] == pytest.approx(0.5, rel=1e-3)
    (failed,) = found.untimed
    assert (failed.implementation, failed.why) == ("failing", "no such kernel")
    assert ("rms_norm", "wrong") in told


def test_what_was_skipped_is_not_called(implementations) -> None:
    called: list[int] = []
    implementations(slow=lambda *args: called.append(1))
    look(CASE, "cpu", frozenset({("rms_norm", "slow")}), False, lambda *one: None)
    assert not called


def test_times_are_of_the_implementation_that_is_named(implementations, monkeypatch) -> None:
    reference = kernels.registered["rms_norm"].reference

    def slower(*args):
        for _ in range(9):
            reference(*args)
        return reference(*args)

    implementations(slower=slower)
    monkeypatch.setattr(stopwatch, "UNSTABLE_HALF_WIDTH", math.inf)  # other work on this machine
    looked = look(CASE, "cpu", frozenset(), False, lambda *one: None)
    timed = Stopwatch("cpu").times(CASE, looked, 0.05, lambda *one: None)
    us = {row.implementation: row.us for row in timed.rows}
    assert us["slower"] > 3 * us["reference"]
    assert [row.implementation for row in timed.rows if row.chosen] == ["torch"]
    assert {row.contract for row in timed.rows} == {"host"}


def test_steady_times_of_threads_that_wait_for_a_core_are_no_times(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(stopwatch.threads, "seconds", lambda count: 8e-3 if count == 4 else 7e-6)
    monkeypatch.setattr(stopwatch, "UNSTABLE_HALF_WIDTH", 10.0)  # of the readings, which agree
    looked = look(CASE, "cpu", frozenset(), False, lambda *one: None)
    timed = Stopwatch("cpu").times(CASE, looked, 0.01, lambda *one: None)
    assert not timed.rows
    assert {one.implementation for one in timed.untimed} == {*looked.called[0].served}
    assert all("4 threads take 1143 times as long as one" in one.why for one in timed.untimed)


def test_times_that_are_not_known_are_no_times(monkeypatch) -> None:
    monkeypatch.setattr(stopwatch, "UNSTABLE_HALF_WIDTH", -1.0)
    monkeypatch.setattr(stopwatch.threads, "held_up", lambda: None)
    looked = look(CASE, "cpu", frozenset(), False, lambda *one: None)
    timed = Stopwatch("cpu").times(CASE, looked, 0.01, lambda *one: None)
    assert not timed.rows
    assert all("readings the median of about" in one.why for one in timed.untimed)


@pytest.mark.parametrize(
    ("theirs", "ours", "wanted"),
    [
        ([3.0, 4.0], [3.0, 4.5], 0.1),
        ([3.0, math.inf], [3.0, math.inf], 0.0),
        ([3.0, 4.0], [3.0, math.nan], NOT_ALIKE),
        ([0.0, 0.0], [0.0, 1.0], NOT_ALIKE),
        ([1, 2, 3, 4], [1, 2, 3, 5], 0.25),
    ],
)
def test_differences(theirs, ours, wanted) -> None:
    found = difference({"out.0": torch.tensor(theirs)}, {"out.0": torch.tensor(ours)}, {})
    assert found == pytest.approx(wanted)


def test_of_what_a_call_changes_the_change_counts() -> None:
    before, theirs, ours = torch.full((100,), 1e3), torch.full((100,), 1e3), torch.full((100,), 1e3)
    theirs[0], ours[0] = 1001.0, 1002.0
    assert difference({"arg.c": theirs}, {"arg.c": ours}, {"arg.c": before}) == pytest.approx(1.0)


class PlayedGpu:
    """Captures what it is not told to refuse; readings are fixed: 5 us captured, 9 eager."""

    def __init__(self, refused: str | None, eager: Exception | None = None) -> None:
        self._refused, self._eager = refused, eager
        self.released: list[str] = []

    def captured(self, calls, opened):
        name = forced()[-1]["rms_norm"]
        opened.callback(self.released.append, name)
        for call in calls:
            alone(call)()
        if name == self._refused:
            raise RuntimeError("operation not permitted when stream is capturing")
        return lambda: 5.0

    def eager(self, calls, forced):
        assert is_frozen(), "plans are made before"
        with forced(), calls[0].ambient():
            calls[0].run()
        if self._eager is not None:
            raise self._eager
        return lambda: 9.0


def is_frozen() -> bool:
    return plans._current is not None and plans._current.frozen


def played(gpu: PlayedGpu) -> Timed:
    stopwatch = Stopwatch("cpu")
    stopwatch._gpu = gpu  # type: ignore[assignment]
    looked = look(CASE, "cpu", frozenset(), True, lambda *one: None)
    return stopwatch.times(CASE, looked, 0.0, lambda *one: None)


def test_captured_calls_are_timed_and_eager_ones_where_not_all_can_be(implementations) -> None:
    timed = played(gpu := PlayedGpu(None))
    captured = {("torch", "graph", 5.0), ("reference", "graph", 5.0)}
    assert {(r.implementation, r.contract, r.us) for r in timed.rows} == captured
    assert sorted(gpu.released) == ["reference", "torch"], "graphs hold memory"
    timed = played(gpu := PlayedGpu("reference"))
    eager = {("torch", "eager", 9.0), ("reference", "eager", 9.0)}
    assert {(r.implementation, r.contract, r.us) for r in timed.rows} == {("torch", "graph", 5.0)} | eager
    assert [(r.implementation, r.contract) for r in timed.rows if r.chosen] == [
        ("torch", "graph"),
        ("torch", "eager"),
    ]
    assert sorted(gpu.released) == ["reference", "torch"]


def test_what_fails_eagerly_too_is_said() -> None:
    timed = played(PlayedGpu("reference", ValueError("no room. See below")))
    assert {r.contract for r in timed.rows} == {"graph"}
    assert {(one.implementation, one.why) for one in timed.untimed} == {
        ("torch", "no room"),
        ("reference", "no room"),
    }


def test_what_declines_the_models_layout_does_not_change_the_contract(implementations) -> None:
    reference, calls = kernels.registered["rms_norm"].reference, []

    def declining(*args):
        calls.append(1)
        if len(calls) > 2:  # the look makes two
            raise KernelError("needs packed rows")
        return reference(*args)

    implementations(declining=declining)
    timed = played(PlayedGpu("declining"))
    assert {(r.implementation, r.contract) for r in timed.rows} == {
        ("torch", "graph"),
        ("reference", "graph"),
    }
    (declined,) = timed.untimed
    assert declined.why == "does not take the model's layout: needs packed rows"
