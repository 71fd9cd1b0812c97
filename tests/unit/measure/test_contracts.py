"""What one timed iteration is, step by step, on a device that writes down what is asked of it."""

import gc
import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fastkernels.measure.contracts import Eager, Graph, Host


class Tape:
    """A device that records, and the judge's hold of it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.hold: Any = SimpleNamespace(
            begin=lambda: self.log.append("hold"), end=lambda: self.log.append("done")
        )

    def stir(self) -> None:
        self.log.append("stir")

    def start(self) -> None:
        self.log.append("start")

    def end(self) -> None:
        self.log.append("end")

    def wait(self) -> None:
        self.log.append("wait")

    def elapsed_ns(self) -> int:
        return 1234

    def capture(self, calls):
        tape = self

        class Chain:
            results = [call() for call in calls]

            def ready(self, *orders) -> None:
                self.is_ready = orders

            def launch(self, order) -> None:
                assert order in self.is_ready
                tape.log.append(f"launch {order}")

            def close(self) -> None:
                tape.log.append("close")

        return Chain()


def held(make, tape: Tape):
    """A contract whose device is held."""
    contract = make(tape)
    contract.hold = tape.hold
    return contract


def run(contract, log: list[str], call=None) -> int:
    contract.prepare()
    return contract.run(
        lambda: log.append("stage"),
        call or (lambda: log.append("call")),
        lambda result: log.append(f"keep {result}"),
    )


def test_host_stages_before_and_keeps_after_the_clock() -> None:
    log: list[str] = []
    ticks = itertools.count(100, 50)

    def clock() -> int:
        log.append("clock")
        return next(ticks)

    assert run(Host(clock=clock), log) == 50
    assert log == ["stage", "clock", "call", "clock", "keep None"]


def test_host_on_a_device_waits_for_it_inside_the_interval() -> None:
    log: list[str] = []

    def clock() -> int:
        log.append("clock")
        return 0

    run(Host(idle=lambda: log.append("idle"), clock=clock), log)
    assert log == ["stage", "idle", "clock", "call", "idle", "clock", "keep None", "idle"]


def test_a_call_of_a_group_begins_when_all_ranks_are_ready_and_its_inputs_are_there() -> None:
    log: list[str] = []

    def clock() -> int:
        log.append("clock")
        return 0

    run(Host(clock=clock, start=lambda: log.append("start")), log)
    assert log == ["stage", "start", "clock", "call", "clock", "keep None"]


def test_a_group_that_does_not_get_ready_calls_nothing_and_leaves_the_garbage_collector_on() -> None:
    log: list[str] = []

    def start() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        run(Host(start=start), log)
    assert log == ["stage"]
    assert gc.isenabled()


def test_host_measures_what_passes() -> None:
    assert 0.02 <= run(Host(), [], lambda: time.sleep(0.02)) / 1e9 < 0.2


def test_a_clock_that_is_patched_later_is_not_used(monkeypatch) -> None:
    contract = Host()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    assert run(contract, [], lambda: time.sleep(0.001)) >= 1_000_000


@pytest.mark.parametrize("contract", [Host(), held(Eager, Tape())], ids=["host", "eager"])
def test_the_garbage_collector_rests_during_the_call_and_wakes_after_a_failure(contract) -> None:
    states = []
    run(contract, [], lambda: states.append(gc.isenabled()))
    assert states == [False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        run(contract, [], lambda: 1 // 0)
    assert gc.isenabled()


@pytest.mark.parametrize("make", [Eager, Graph])
def test_nothing_but_the_call_lies_between_the_words_to_a_device(make) -> None:
    """And what the process does when results have been shown waits for nothing else."""
    tape = Tape()
    contract = held(make, tape)
    if isinstance(contract, Graph):
        contract.capture([lambda: "one", lambda: "two"])
    assert run(contract, tape.log) == 1234
    made, result = ("launch (0, 1)", ["one", "two"]) if isinstance(contract, Graph) else ("call", None)
    order = ["hold", "stir", "start", made, "end", "done", f"keep {result}", "wait"]
    assert tape.log == order


def test_a_device_that_nobody_holds_is_not_timed() -> None:
    with pytest.raises(AssertionError, match="holds the device"):
        run(Eager(Tape()), [])


def test_one_link_alone_gives_its_own_result() -> None:
    tape = Tape()
    contract = held(Graph, tape)
    contract.capture([lambda: "one", lambda: "two"])
    contract.choose([1])
    run(contract, tape.log)
    assert tape.log[-5:] == ["launch (1,)", "end", "done", "keep ['two']", "wait"]
    assert tape.log[-9:-5] == ["launch (0,)", "hold", "stir", "start"], "another wakes the code up"


def test_links_run_in_the_order_that_was_chosen() -> None:
    tape = Tape()
    contract = held(Graph, tape)
    contract.capture([lambda: "one", lambda: "two"])
    contract.choose([1, 0])
    run(contract, tape.log)
    assert tape.log[:4] == ["hold", "stir", "start", "launch (1, 0)"]
    assert tape.log[-2] == "keep ['two', 'one']"


def test_a_new_chain_takes_the_place_of_the_old_one() -> None:
    tape = Tape()
    contract = held(Graph, tape)
    contract.capture([lambda: "old"])
    assert contract.capture([lambda: "new"]) == ["new"]
    assert tape.log == ["close"]


def test_a_chain_that_was_released_cannot_run() -> None:
    contract = held(Graph, Tape())
    contract.capture([lambda: "static"])
    contract.release()
    with pytest.raises(AssertionError, match="capture"):
        contract.run(lambda: None, lambda: None, lambda result: None)


def test_a_call_that_cannot_be_captured_says_so() -> None:
    contract = held(Graph, Tape())

    def uncapturable() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        contract.capture([uncapturable])
