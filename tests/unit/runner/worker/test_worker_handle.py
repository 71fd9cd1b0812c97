"""What the judge believes of a worker's answers: exactly what it asked for, and nothing else."""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastkernels.measure.chain import ChainPlan
from fastkernels.measure.clocks import SmClock
from fastkernels.runner.inside.results import Result
from fastkernels.runner.ranks.late_rank import Late
from fastkernels.runner.transfer import hold_gate
from fastkernels.runner.transfer.boxes import Boxes
from fastkernels.runner.transfer.gpu_arguments import Shown
from fastkernels.runner.transfer.protocol import INPUTS_ARE_TAKEN, INPUTS_ARE_THERE, ErrorReport
from fastkernels.runner.transfer.shared_memory import Arena, Ticket, Want, place
from fastkernels.runner.worker.pool import WorkerError
from fastkernels.runner.worker.worker_calls import Captured, Inspected, Timed, Timeouts, Trouble
from fastkernels.runner.worker.worker_handle import WorkerHandle


class Liar:
    """A worker that answers what it likes."""

    name = "liar"
    busy = False

    def __init__(self, answer: dict) -> None:
        self.says, self.closed = answer, False
        self.scratch = SimpleNamespace(printed=lambda: "printed")

    def call(self, *arguments, **more) -> dict:
        return self.says

    def pause(self) -> int:
        """It stands still."""
        return time.perf_counter_ns()

    def close(self) -> None:
        self.closed = True

    def standing(self) -> None:
        return None


def described(size: int) -> dict:
    """What a worker says of a vector of float32."""
    plain = {"shape": [size], "dtype": "float32", "device": "cpu", "stride": [1], "type_name": "Tensor"}
    return {"description": plain, "bytes": 4 * size, "span_bytes": 4 * size}


def handle(answer: dict) -> WorkerHandle:
    return WorkerHandle(Liar(answer), "cpu", Timeouts.of("cpu", None), SmClock("cpu"), 0)  # type: ignore[arg-type]


def with_box(
    worker: Liar, box: Arena, overhead_ns: int = 0, ranks: int = 1, inbox: Any = None
) -> WorkerHandle:
    """Results come in the box, and inputs from nowhere."""
    judge = WorkerHandle(worker, "cpu", Timeouts.of("cpu", None), SmClock("cpu"), overhead_ns, ranks)  # type: ignore[arg-type]
    judge._boxes = Boxes(inbox or Inbox([]), box, box)  # type: ignore[arg-type]
    return judge


class Inbox:
    """Tells in `seen` what is done to it."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def write(self, inputs: object) -> None:
        self._seen.append("deliver")

    def poison(self, names: object) -> None:
        self._seen.append("withdraw")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"ns": 0},
        {"ns": -5},
        {"ns": "fast"},
        {"ns": 1e30},
        {"ns": float("nan")},
        {"ns": 5, "speedup": 100},
    ],
)
def test_a_duration_must_be_one(answer: dict) -> None:
    judge = handle(answer)
    with pytest.raises(Trouble, match="garbled answer to 'go'") as caught:
        judge._calls.answer("go", Timed, 1)
    assert caught.value.problem.status == "CRASHED"
    assert judge.worker.closed


@pytest.mark.parametrize(
    "answer",
    [
        {"outputs": [], "threads": "many", "flags": {}},
        {"outputs": {}, "threads": 1, "flags": {}},
        {"outputs": [{"out.0": {}}], "threads": 1, "flags": {}},
        {
            "outputs": [{"out.0": {"description": {"shape": [1], "dtype": "float32"}}}],
            "threads": 1,
            "flags": {},
        },
    ],
)
def test_a_description_must_be_whole(answer: dict) -> None:
    with pytest.raises(Trouble, match="garbled answer"):
        handle(answer)._calls.answer("inspect", Inspected, 1)


@pytest.mark.parametrize("stride", [[-1], [2**63]])
def test_a_stride_must_be_one(stride: list[int]) -> None:
    description = {"shape": [1], "dtype": "float32", "device": "cpu", "stride": stride, "type_name": "Tensor"}
    answer = {"outputs": [{"out.0": {"description": description}}], "threads": 1, "flags": {}}
    with pytest.raises(Trouble, match="garbled answer"):
        handle(answer)._calls.answer("inspect", Inspected, 1)


def test_a_right_answer_is_taken() -> None:
    assert handle({"ns": 5})._calls.answer("go", Timed, 1).ns == 5
    answer = {"captured": False, "kernels": {}, "detail": "no", "outputs": [], "shown": None}
    assert handle(answer)._calls.answer("capture", Captured, 1).detail == "no"


def test_every_link_of_a_chain_must_be_described() -> None:
    judge = handle({"captured": True, "kernels": {}, "detail": "", "outputs": [{}], "shown": None})
    judge._mapped = Maps([])  # type: ignore[assignment]
    with pytest.raises(Trouble, match="1 of 3 links are described"):
        judge.capture(ChainPlan(3), {})


def test_one_limit_for_all_phases_or_one_for_each() -> None:
    asked = Timeouts.of("cuda", 3.0)
    assert (asked.open, asked.build, asked.first_beside(2.0), asked.call) == (3, 3, 3, 3)
    assert Timeouts.of("cuda", None).first > Timeouts.of("cpu", None).first


def test_the_limit_of_a_first_call_follows_the_baseline() -> None:
    limits = Timeouts.of("cpu", None)
    assert limits.first_beside(2.0) - limits.first_beside(1.0) == limits.times_baseline > 10


def test_what_is_written_after_the_clock_has_stopped_is_no_result() -> None:
    box = Arena.create([Want("out.0", (2,), torch.float32)], "cpu", writable=True)

    class Late(Liar):
        pid = os.getpid()

        def call(self, phase, *arguments, **more) -> dict:
            if phase == "inspect":
                box.tensors["out.0"].fill_(1)
                result = described(2)
                return {"outputs": [{"out.0": result}], "threads": 1, "flags": {}}
            return {"ns": 5} if phase == "go" else {}

    reading = with_box(Late({}), box).iterate({}, "host", False, False, [])
    assert reading.outputs["out.0"].isnan().all(), "poison, as the outbox had it before the call"
    assert (box.tensors["out.0"] == 1).all()
    box.close()


def test_of_boxes_with_room_for_a_chain_one_call_fills_the_first_link(single: Arena, monkeypatch) -> None:
    class Honest(Liar):
        pid = os.getpid()

        def call(self, phase, *arguments, **more) -> dict:
            inspected = {"outputs": [{"out.0": described(2)}], "threads": 1, "flags": {}}
            return {"go": {"ns": 5}, "inspect": inspected}.get(phase, {})

    judge = with_box(Honest({}), single)
    of_all = torch.arange(3.0)[:, None]
    monkeypatch.setattr(judge._boxes, "echoed", lambda names: {"param.weight": of_all})
    reading = judge.iterate({}, "host", False, True, ["param.weight"])
    assert reading.echo["param.weight"].tolist() == [[0.0]]


@pytest.mark.parametrize("keeps", [True, False])
def test_inputs_and_results_come_from_the_worker_once_the_clock_has_stopped(keeps: bool) -> None:
    """Inbox and outbox are spoilt before it is asked for either."""
    box = Arena.create([Want("out.0", (2,), torch.float32)], "cpu", writable=True)
    seen: list[str] = []

    class Keeper(Liar):
        pid = os.getpid()

        def call(self, phase, *arguments, **more) -> dict:
            seen.append(phase)
            if phase == "inspect":
                assert more["echo_results"]
                assert box.tensors["out.0"].isnan().all()
            if phase == "go" or (phase == "inspect" and keeps):
                box.tensors["out.0"].fill_(1)
            result = described(2)
            inspected = {"outputs": [{"out.0": result}], "threads": 1, "flags": {}}
            return {"go": {"ns": 5}, "inspect": inspected}.get(phase, {})

    judge = with_box(Keeper({}), box, inbox=Inbox(seen))
    reading = judge.iterate({}, "host", False, False, [], echo_results=True)
    assert seen == ["prepare", "deliver", "go", "withdraw", "inspect"]
    assert (reading.outputs["out.0"] == 1).all()
    assert reading.lasting == keeps
    box.close()


class Group(Liar):
    """Two ranks with a result each, of which `described` are described."""

    pid = os.getpid()

    def __init__(self, box: Arena, described: int = 2) -> None:
        super().__init__({})
        self._box, self._described = box, described

    def call(self, phase, *arguments, **more) -> dict:
        if phase == "go":
            for rank, result in enumerate(self._box.tensors["out.0"]):
                result.fill_(rank)
            return {"ns": 500}
        if phase == "again":
            for rank, result in enumerate(self._box.tensors["out.0"]):
                result.fill_(10 + rank)
        result = described(3)
        inspected = {"outputs": [{"out.0": result}] * self._described, "threads": 1, "flags": {}}
        return inspected if phase == "inspect" else {}


def of_two(worker: Liar, box: Arena, inbox: Any = None) -> WorkerHandle:
    return with_box(worker, box, overhead_ns=100, ranks=2, inbox=inbox)


@pytest.fixture
def box():
    box = Arena.create([Want("out.0", (3,), torch.float32, links=2)], "cpu", writable=True)
    yield box
    box.close()


def test_ranks_make_one_call_together_and_each_has_a_result(box: Arena) -> None:
    judge = of_two(Group(box), box)
    reading = judge.iterate({}, "collective", False, False, [])
    assert reading.ns == 400, "not shared out, and what the clock reads for nothing is taken off once"
    assert reading.outputs["out.0"].tolist() == [[0.0] * 3, [1.0] * 3]
    assert len(reading.described) == 2
    assert judge.again(reading)["out.0"].tolist() == [[10.0] * 3, [11.0] * 3]


def late_by(after_s: float, do: Callable[[str], None] = lambda what: None) -> Late:
    return Late(1, after_s, {}, lambda: do("complete"), lambda: do("spoil"))


def test_a_late_ranks_inputs_come_when_the_others_have_begun_and_go_when_it_has_them(box: Arena) -> None:
    seen: list[str] = []
    leads: list[socket.socket] = []

    class Waits(Group):
        def call(self, phase, *arguments, **more) -> dict:
            seen.append(phase)
            if phase == "prepare":
                assert more["late"] == 1
                leads.append(socket.socket(fileno=os.dup(arguments[1][0])))
            if phase == "go":
                assert leads[0].recv(1) == INPUTS_ARE_THERE
                seen.append("taken")
                leads[0].send(INPUTS_ARE_TAKEN)
                assert leads[0].recv(1) == b""
                seen.append("begins")
                leads[0].close()
            return super().call(phase, *arguments, **more)

    judge = of_two(Waits(box), box, Inbox(seen))
    before = len(os.listdir("/dev/fd"))
    judge.iterate({}, "collective", False, False, [], late=late_by(0.02, seen.append))
    wanted = "prepare deliver go complete taken spoil begins withdraw inspect"
    assert seen == wanted.split()
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("phase", ["prepare", "go"])
def test_a_group_that_fails_where_a_rank_is_late_leaves_nothing_open(box: Arena, phase: str) -> None:
    class Fails(Group):
        def call(self, do, *arguments, **more) -> dict:
            if do == phase:
                raise WorkerError(ErrorReport(kind="ValueError", message="rank 1: boom"), "")
            return {}

    before = len(os.listdir("/dev/fd"))
    with pytest.raises(Trouble, match="rank 1: boom"):
        of_two(Fails(box), box).iterate({}, "collective", False, False, [], late=late_by(0.01))
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.timeout(20)
def test_a_late_rank_that_answers_without_its_inputs_is_not_waited_for(box: Arena) -> None:
    """Its process holds the other end all the while."""
    held: list[int] = []

    class Hasty(Group):
        def call(self, phase, *arguments, **more) -> dict:
            if phase == "prepare":
                held.append(os.dup(arguments[1][0]))
            return super().call(phase, *arguments, **more)

    judge = of_two(Hasty(box), box)
    judge.iterate({}, "collective", False, False, [], late=late_by(0.01))
    os.close(held[0])


def test_inputs_that_cannot_be_completed_are_no_fault_of_a_rank(box: Arena) -> None:
    def fails(what: str) -> None:
        raise MemoryError(what)

    with pytest.raises(MemoryError, match="complete"):
        of_two(Group(box), box).iterate({}, "collective", False, False, [], late=late_by(0, fails))


@pytest.mark.parametrize("described", [1, 3])
def test_every_rank_must_be_described(box: Arena, described: int) -> None:
    judge = of_two(Group(box, described), box)
    with pytest.raises(Trouble, match=f"{described} of 2 ranks are described"):
        judge.iterate({}, "collective", False, False, [])
    assert judge.worker.closed  # type: ignore[attr-defined]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_group_in_which_something_failed_is_not_asked_again(ranks: int) -> None:
    class Fails(Liar):
        def call(self, *arguments, **more) -> dict:
            raise WorkerError(ErrorReport(kind="ValueError", message="rank 1: boom"), "")

    worker = Fails({})
    judge = WorkerHandle(worker, "cpu", Timeouts.of("cpu", None), SmClock("cpu"), 0, ranks)  # type: ignore[arg-type]
    with pytest.raises(Trouble, match="rank 1: boom"):
        judge._calls.answer("go", Timed, 1)
    assert worker.closed == (ranks > 1)


# ---------------------------------------------------------------- on devices that the judge holds


class Maps:
    """What the judge does with memory, noted in `seen`; results are 1, and later 2."""

    def __init__(self, seen: list[str], ranks: int = 1) -> None:
        self._seen, self.links, self._now = seen, ranks, 1.0
        self.strays = False

    def lend(self, links: int, arguments: object = None) -> str:
        return f"{links} lent"

    def take_back(self) -> None: ...

    def spoil(self) -> None:
        self._seen.append("spoil")

    def brings(self, name: str) -> bool:
        return name == "arg.x"

    def find(self, shown: list[Shown]) -> None:
        self._seen.append(f"find {[one.blocks for one in shown]}")

    def lose(self) -> None:
        self._seen.append("lose")

    def get_ready(self, inputs: dict, ran: list[int] | None) -> None:
        self.walk_ns = None if ran is None else 700

    def enqueue_arguments(self, rank: int) -> None:
        self._seen.append(f"bring {rank}")

    def enqueue_results(self, rank: int, ran: list[int] | None) -> None:
        self._seen.append(f"take {rank}" if ran is None else f"take {ran} of {rank}")
        self.take()

    def take(self) -> None:
        self._kept = self._now

    def kept(self) -> Arena:
        slots, size = place([Want("out.0", (2,), torch.float32, links=self.links)])
        box = Arena(Ticket(size, slots, writable=True), torch.empty(size, dtype=torch.uint8))
        box.tensors["out.0"].copy_(self._kept * torch.arange(1, self.links + 1)[:, None])
        return box

    def note(self, names: list[str]) -> None:
        self._seen.append("note")

    def echoed(self) -> dict:
        return {"arg.x": torch.zeros(self.links, 1)}

    def strayed(self, ran: list[int]) -> bool:
        return self.strays

    def last(self, ran: list[int] | None) -> bool:
        return self._kept == self._now

    def change(self) -> None:
        self._now = 2.0


class Holding(Liar):
    """A worker that holds its devices: what is done in its call is noted in `seen`. `comes`: to the gate
    before they go on."""

    pid = os.getpid()

    def __init__(self, seen: list[str], comes: bool = True, fails: bool = False, ranks: int = 1) -> None:
        super().__init__({})
        self._seen, self._comes, self._fails, self._ranks = seen, comes, fails, ranks
        self.pairs = [hold_gate.pair() for _ in range(ranks)]
        self.says_where = b'{"blocks": ["ab"], "links": [{}]}'

    def ask(self, do: str) -> None:
        self._seen.append(do)
        for _, theirs in self.pairs:
            theirs.send(self.says_where)

    def comes_to(self, channel: socket.socket, within_s: float) -> bool:
        return self._comes

    def wait_at(self, channel: socket.socket, timeout_s: float) -> None:
        if self._fails:
            raise WorkerError(ErrorReport(kind="ValueError", message="boom"), "")
        self._seen.append("gate")

    def answer(self, timeout_s: float) -> dict:
        self._seen.append("answer")
        return {"ns": 5}

    def pause(self) -> int:
        self._seen.append("pause")
        return super().pause()

    def call(self, phase: str, *arguments, **more) -> dict:
        self._seen.append(phase)
        if phase == "prepare":
            self.said = more
        outputs = [{"out.0": described(2)}] * self._ranks
        return {"inspect": {"outputs": outputs, "threads": 1, "flags": {}}}.get(phase, {})


class Doors:
    """A hold whose devices do what they should once it is opened, and need so many looks to be done."""

    def __init__(self, seen: list[str], maps: Maps, looks: float, ranks: int) -> None:
        self._seen, self._maps, self._looks, self._ranks = seen, maps, looks, ranks

    def shut(self) -> None:
        self._seen.append("shut")

    def arm(self, bring: Callable[[int], None], take: Callable[[int], None], late: int | None) -> None:
        self._bring, self._take = bring, take

    def open(self, late: int | None) -> None:
        self._seen.append("open" if late is None else f"open but {late}")
        for rank in range(self._ranks):
            if rank != late:
                self._bring(rank)
                self._take(rank)

    def let_go(self, rank: int) -> None:
        self._seen.append(f"let {rank} go")
        self._bring(rank)
        self._take(rank)

    def passed(self, within_s: float) -> bool:
        self._maps.change()
        self._looks -= 1
        return self._looks <= 0

    def device_ns(self) -> int:
        return 12

    def release(self) -> None:
        self._seen.append("release")


@contextlib.contextmanager
def held(worker: Holding, box: Arena, looks: float = 1) -> Iterator[WorkerHandle]:
    judge = with_box(worker, box, ranks=worker._ranks, inbox=Inbox(worker._seen))
    maps = Maps(worker._seen, worker._ranks)
    judge._gates = [ours for ours, _ in worker.pairs]
    judge._hold = Doors(worker._seen, maps, looks, worker._ranks)  # type: ignore[assignment]
    judge._mapped = maps  # type: ignore[assignment]
    judge._captured = [{"out.0": Result.model_validate(described(2))}]
    try:
        yield judge
    finally:
        for end in itertools.chain(*worker.pairs):
            end.close()


@pytest.fixture
def single():
    box = Arena.create([Want("out.0", (2,), torch.float32)], "cpu", writable=True)
    yield box
    box.close()


def test_a_held_device_works_while_its_process_stands_still(single: Arena) -> None:
    seen: list[str] = []
    with held(Holding(seen), single) as judge:
        reading = judge.iterate({}, "eager", False, False, ["arg.x"], echo_results=True)
    assert seen == [
        *("prepare", "shut", "go", "gate", "pause", "find [['ab']]"),
        *("open", "bring 0", "take 0", "note", "answer", "release"),
        *("inspect", "pause", "lose"),
    ]
    assert reading.outputs["out.0"].tolist() == [[1.0, 1.0]], "what lay there when the clock had stopped"
    assert not reading.lasting
    assert reading.window_ns == 12, "of the device, not of the host"
    assert reading.hidden
    assert not reading.waits
    assert reading.echo.keys() == {"arg.x"}


def test_a_device_that_takes_long_is_waited_for_by_its_own_process(single: Arena) -> None:
    seen: list[str] = []
    with held(Holding(seen), single, looks=2) as judge:
        judge.iterate({}, "eager", False, False, [])
    assert seen[6:] == [
        *("open", "bring 0", "take 0", "answer", "note", "release"),
        *("inspect", "pause", "lose"),
    ]


def test_what_a_chain_returns_was_found_when_it_was_captured(single: Arena) -> None:
    seen: list[str] = []
    with held(Holding(seen), single) as judge:
        reading = judge.iterate({}, "graph", False, False, [], order=[0])
    assert seen[:6] == ["spoil", "prepare", "shut", "go", "gate", "pause"]
    assert seen[6:9] == ["open", "bring 0", "take 0"]
    assert reading.walk_ns is None


def test_links_of_a_chain_that_run_without_the_others(single: Arena) -> None:
    seen: list[str] = []
    worker = Holding(seen)
    with held(worker, single) as judge:
        judge._captured *= 3
        judge._mapped.links = 3  # type: ignore[union-attr]
        reading = judge.iterate({}, "graph", False, False, ["arg.x"], order=[2, 0])
    assert worker.said["order"] == [2, 0], "as they run"
    assert seen[8] == "take [0, 2] of 0"
    assert reading.outputs["out.0"].tolist() == [[1.0, 1.0], [3.0, 3.0]]
    assert len(reading.described) == len(reading.echo["arg.x"]) == 2
    assert reading.ns == pytest.approx(reading.claimed_ns / 2, abs=1)
    assert reading.walk_ns == 700
    assert not reading.strayed


@pytest.mark.parametrize("has_views", [False, True])
def test_links_with_other_strides_are_laid_by_their_own(single: Arena, has_views: bool) -> None:
    """As results may have whose inputs are views in every second link."""
    with held(Holding([]), single) as judge:
        (plain,) = judge._captured
        description = plain["out.0"].description
        other = description.model_copy(update={"stride": (0,)})
        odd = {"out.0": plain["out.0"].model_copy(update={"description": other})}
        judge._captured, judge._has_views = [plain, odd, plain], has_views
        judge._mapped.links = 3  # type: ignore[union-attr]
        reading = judge.iterate({}, "graph", False, False, [], order=[2, 0, 1])
    assert [one["out.0"].stride for one in reading.described] == [(1,), (0,), (1,)]
    assert reading.outputs["out.0"].shape == (3, 2)
    assert reading.strided == (False, has_views, False)


@pytest.mark.parametrize(("order", "strayed"), [([2, 0], True), ([1], False), ([2, 0, 1], False)])
def test_results_of_links_that_did_not_run_are_looked_at(
    single: Arena, order: list[int], strayed: bool
) -> None:
    """But not beside a link that runs alone, which has another one run before it."""
    with held(Holding([]), single) as judge:
        judge._captured *= 3
        judge._mapped.links, judge._mapped.strays = 3, True  # type: ignore[union-attr]
        assert judge.iterate({}, "graph", False, False, [], order=order).strayed is strayed


def test_all_devices_of_a_group_are_held_and_a_late_rank_is_let_go_alone(box: Arena) -> None:
    seen: list[str] = []
    with held(Holding(seen, ranks=2), box) as judge:
        reading = judge.iterate({}, "collective", False, False, [], late=late_by(0.01))
    assert seen == [
        *("prepare", "shut", "go", "gate", "gate", "pause", "find [['ab'], ['ab']]"),
        *("open but 1", "bring 0", "take 0", "let 1 go", "bring 1", "take 1", "note", "answer", "release"),
        *("inspect", "pause", "lose"),
    ]
    assert reading.outputs["out.0"].tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_a_call_that_waits_for_the_device_is_let_go_and_counts_when_it_does_so_again(single: Arena) -> None:
    seen: list[str] = []
    with held(Holding(seen, comes=False), single) as judge:
        readings = [judge.iterate({}, "eager", False, False, []) for _ in range(5)]
    assert seen[:7] == ["prepare", "shut", "go", "open", "bring 0", "gate", "pause"], "it runs until it comes"
    assert [reading.hidden for reading in readings] == [False, False, False, True, True]
    assert [reading.waits for reading in readings] == [False, False, False, True, True]
    assert readings[0].outputs["out.0"].tolist() == [[2.0, 2.0]], "taken when it has come"


def test_a_device_that_never_says_that_it_is_done_is_let_go(single: Arena) -> None:
    seen: list[str] = []
    with (
        held(Holding(seen), single, looks=float("inf")) as judge,
        pytest.raises(Trouble, match="did not say that the call has ended"),
    ):
        judge.iterate({}, "eager", False, False, [])
    assert seen[-1] == "release"


def test_a_call_that_fails_leaves_no_device_held(single: Arena) -> None:
    seen: list[str] = []
    with held(Holding(seen, fails=True), single) as judge, pytest.raises(Trouble, match="boom"):
        judge.iterate({}, "graph", False, False, [])
    assert seen == ["spoil", "prepare", "shut", "go", "release"]


@pytest.mark.parametrize("says", [b"1", b"{}", b'{"blocks": [], "links": [{"out.0": {"block": -2}}]}'])
def test_who_shows_what_is_no_place_has_crashed(single: Arena, says: bytes) -> None:
    worker = Holding([])
    worker.says_where = says
    with held(worker, single) as judge, pytest.raises(Trouble, match="garbled answer to 'go'"):
        judge.iterate({}, "eager", False, False, [])
    assert worker.closed
