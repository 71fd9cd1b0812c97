"""What one timed iteration is, step by step, on a device that writes down what is asked of it."""

import gc
import itertools
import time

import pytest

from fastkernels.measure.contracts import (
    FIRST_SPIN_CYCLES,
    MAX_SPIN_CYCLES,
    Eager,
    Graph,
    Host,
    Timing,
    longer,
)


class Tape:
    """A device that records. `slow` says in which runs the device reaches the first event too early."""

    def __init__(self, slow: bool = False) -> None:
        self.log: list[str] = []
        self.spins: list[int] = []
        self.slow = slow

    def spin(self, cycles: int) -> None:
        self.spins.append(cycles)
        self.log.append("spin")

    def flush(self) -> None:
        self.log.append("flush")

    def start(self) -> None:
        self.log.append("start")

    def end(self) -> None:
        self.log.append("end")

    def started(self) -> bool:
        return self.slow

    def wait(self) -> None:
        self.log.append("wait")

    def elapsed_ns(self) -> int:
        return 1234

    def capture(self, calls):
        tape = self

        class Chain:
            results = [call() for call in calls]

            def ready(self, link) -> None:
                tape.log.append("ready")

            def launch(self, link) -> None:
                tape.log.append("launch" if link is None else f"launch {link}")

            def close(self) -> None:
                tape.log.append("close")

        return Chain()


def run(contract, log: list[str], call=None, spin_cycles: int = 1000) -> Timing:
    contract.prepare(spin_cycles)
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

    assert run(Host(clock=clock), log) == Timing(50, True)
    assert log == ["stage", "clock", "call", "clock", "keep None"]


def test_host_on_a_device_waits_for_it_inside_the_interval() -> None:
    log: list[str] = []

    def clock() -> int:
        log.append("clock")
        return 0

    run(Host(idle=lambda: log.append("idle"), clock=clock), log)
    assert log == ["stage", "idle", "clock", "call", "idle", "clock", "keep None"]


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
    timing = run(Host(), [], lambda: time.sleep(0.02))
    assert 0.02 <= timing.ns / 1e9 < 0.2


def test_a_clock_that_is_patched_later_is_not_used(monkeypatch) -> None:
    contract = Host()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 0)
    assert run(contract, [], lambda: time.sleep(0.001)).ns >= 1_000_000


@pytest.mark.parametrize("contract", [Host(), Eager(Tape())], ids=["host", "eager"])
def test_the_garbage_collector_rests_during_the_call_and_wakes_after_a_failure(contract) -> None:
    states = []
    run(contract, [], lambda: states.append(gc.isenabled()))
    assert states == [False]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        run(contract, [], lambda: 1 // 0)
    assert gc.isenabled()


def test_eager_stages_behind_the_spin_and_keeps_at_once() -> None:
    tape = Tape()
    timing = run(Eager(tape), tape.log)
    assert timing == Timing(1234, True)
    assert tape.log == ["spin", "stage", "flush", "start", "call", "end", "keep None", "wait"]


class Hold:
    """Of a tape, with what the device does meanwhile."""

    def __init__(self, tape: Tape) -> None:
        self.begin, self.end = (lambda: tape.log.append("hold")), (lambda: tape.log.append("done"))


@pytest.mark.parametrize("make", [Eager, lambda tape: Graph(tape, poison=lambda result: None)])
def test_a_device_that_is_held_does_not_spin_and_says_when_results_are_kept(make) -> None:
    tape = Tape(slow=True)
    contract = make(tape)
    contract.hold = Hold(tape)
    if isinstance(contract, Graph):
        contract.capture([lambda: "one"])
    timing = run(contract, tape.log)
    made, result = ("launch", ["one"]) if isinstance(contract, Graph) else ("call", None)
    order = ["hold", "stage", "flush", "start", made, "end", f"keep {result}", "done", "wait"]
    assert tape.log[-len(order) :] == order
    assert tape.log.count("hold") == 1
    assert not tape.spins
    assert timing.hidden, "the judge knows better"


def test_ranks_spin_together_and_their_devices_meet_behind_the_flush() -> None:
    tape = Tape()
    contract = Eager(tape, lambda: tape.log.append("all ready"), lambda: tape.log.append("all devices here"))
    run(contract, tape.log)
    order = ["all ready", "spin", "stage", "flush", "all devices here", "start", "call", "end"]
    assert tape.log[:8] == order


def test_a_spin_that_was_too_short_says_so_and_the_next_is_longer() -> None:
    tape = Tape(slow=True)
    contract, cycles = Eager(tape), FIRST_SPIN_CYCLES
    timings = []
    for _ in range(20):
        timings.append(run(contract, tape.log, spin_cycles=cycles))
        cycles = longer(cycles)
    assert tape.spins[1] == 2 * tape.spins[0]
    assert max(tape.spins) == MAX_SPIN_CYCLES
    assert not any(timing.hidden for timing in timings), "what that means is for the judge to say"


def test_a_chain_is_poisoned_and_launched_and_its_calls_are_not_made_again() -> None:
    tape = Tape()
    contract = Graph(tape, poison=lambda result: tape.log.append(f"poison {result}"))
    assert contract.capture([lambda: "one", lambda: "two"]) == ["one", "two"]
    timing = run(contract, tape.log)
    assert timing.ns == 1234
    assert tape.log == [
        "ready",
        "poison one",
        "poison two",
        "spin",
        "stage",
        "flush",
        "start",
        "launch",
        "end",
        "keep ['one', 'two']",
        "wait",
    ]


def test_the_poison_is_recorded_with_the_chain_and_given_back_with_it() -> None:
    tape = Tape()

    class Recorded:
        def __init__(self, work) -> None:
            work()
            tape.log.append("recorded")

        def __call__(self) -> None:
            tape.log.append("poison all")

        def close(self) -> None:
            tape.log.append("close poison")

    contract = Graph(tape, poison=lambda result: tape.log.append(f"poison {result}"), record=Recorded)
    contract.capture([lambda: "one", lambda: "two"])
    assert tape.log == ["poison one", "poison two", "recorded"]
    run(contract, tape.log)
    assert tape.log[3:6] == ["ready", "poison all", "spin"]
    contract.release()
    assert tape.log[-2:] == ["close poison", "close"]


def test_one_link_alone_gives_its_own_result() -> None:
    tape = Tape()
    contract = Graph(tape, poison=lambda result: None)
    contract.capture([lambda: "one", lambda: "two"])
    contract.choose(1)
    run(contract, tape.log)
    assert tape.log[-4:] == ["launch 1", "end", "keep ['two']", "wait"]
    assert tape.log[-9:-4] == ["spin", "launch 0", "stage", "flush", "start"], "another wakes the code up"
    contract.choose(None)
    run(contract, tape.log)
    assert tape.log[-2] == "keep ['one', 'two']"


def test_a_new_chain_takes_the_place_of_the_old_one() -> None:
    tape = Tape()
    contract = Graph(tape, poison=lambda result: None)
    contract.capture([lambda: "old"])
    assert contract.capture([lambda: "new"]) == ["new"]
    assert tape.log == ["close"]


def test_a_chain_that_was_released_cannot_run() -> None:
    contract = Graph(Tape(), poison=lambda result: None)
    contract.capture([lambda: "static"])
    contract.release()
    with pytest.raises(AssertionError, match="capture"):
        contract.run(lambda: None, lambda: None, lambda result: None)


def test_a_call_that_cannot_be_captured_says_so() -> None:
    contract = Graph(Tape(), poison=lambda result: None)

    def uncapturable() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="capturing"):
        contract.capture([uncapturable])
