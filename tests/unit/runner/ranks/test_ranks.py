"""A group of ranks as one side: whose error it tells, what it answers, and how all begin at once. The ranks
are real processes with a side of a few lines."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastkernels.runner.ranks import peer as peers
from fastkernels.runner.ranks.peer import Peer, Start
from fastkernels.runner.ranks.ranks_side import RanksSide
from fastkernels.runner.transfer.protocol import Reported
from fastkernels.runner.worker.pool import Worker, WorkerDied

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks end with the first one on Linux only")
SOON_S = 1.0  # far more than an answer takes, far less than _NOTICE_S + SOON_S


class Rank:
    """`go` does what it is told to; the rest answers with its rank."""

    def __init__(self, rank: int, do: Callable[[int], Any]) -> None:
        self._rank, self._do = rank, do

    def go(self) -> Any:
        return self._do(self._rank)

    def build(self) -> dict[str, Any]:
        return {"prepares": self._rank == 1}

    def first(self) -> dict[str, Any]:
        return {"rank": self._rank}

    def inspect(self, echo: list[str]) -> dict[str, Any]:
        outputs = [dict.fromkeys(echo, self._rank)]
        return {"outputs": outputs, "threads": 1 + self._rank, "flags": {"seed": str(self._rank)}}

    def probe(self, ticket: Any, descriptors: list[int]) -> dict[str, Any]:
        byte = os.pread(descriptors[0], 1, 0)[0]
        return {"byte": byte + (ticket == "another" and self._rank)}

    def close(self) -> dict[str, Any]:
        raise SystemExit(f"of rank {self._rank}")


@pytest.fixture
def group() -> Iterator[Callable[..., RanksSide]]:
    """Makes a side whose ranks `do(rank)`."""
    made: list[Peer] = []

    def make(do: Callable[[int], Any] = lambda rank: {}, ranks: int = 3) -> RanksSide:
        side = RanksSide.__new__(RanksSide)
        side._peers = []
        for rank in range(1, ranks):
            side._peers.append(Peer(rank, lambda rank: Rank(rank, do), list(side._peers)))
        side._own = Rank(0, do)  # pyright: ignore[reportAttributeAccessIssue]
        made.extend(side._peers)
        return side

    yield make
    for peer in made:
        peer._channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(peer._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(peer._pid, 0)


def timed(ns: int) -> dict[str, Any]:
    return {"ns": ns}


def told(side: RanksSide) -> tuple[str, str, float]:
    """(kind, message) of the error of a call, and after how many seconds it was told."""
    begin = time.monotonic()
    with pytest.raises(Reported) as error:
        side.go()
    report = error.value.report
    return report.kind, report.message, time.monotonic() - begin


def boom(message: str = "boom", after_s: float = 0) -> None:
    time.sleep(after_s)
    raise ValueError(message)


# ------------------------------------------------------------ answers


def test_a_group_takes_as_long_as_its_slowest_rank(group) -> None:
    assert group(lambda rank: timed([5, 9, 7][rank])).go() == timed(9)


def test_one_rank_that_repacks_makes_the_group_one_that_does(group) -> None:
    assert group().build() == {"prepares": True, "put_back": []}
    assert group(ranks=1).build() == {"prepares": False, "put_back": []}


def test_results_and_settings_of_every_rank_are_told_apart(group) -> None:
    assert group().inspect(echo=["y"]) == {
        "outputs": [{"y": 0}, {"y": 1}, {"y": 2}],
        "threads": 3,
        "flags": {"seed": "0", "rank 1 seed": "1", "rank 2 seed": "2"},
    }


def test_every_rank_gets_the_descriptors_and_must_read_the_same(group, tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(b"Z")
    descriptor = os.open(tmp_path / "shared", os.O_RDONLY)
    side = group()
    try:
        assert side.probe("one", [descriptor]) == {"byte": ord("Z")}
        assert side.probe("another", [descriptor]) == {"byte": None}
    finally:
        os.close(descriptor)


def test_a_group_answers_again_and_again(group) -> None:
    side = group()
    assert [side.first() for _ in range(20)] == [{"rank": 0, "put_back": []}] * 20


# ------------------------------------------------------------ errors


@pytest.mark.parametrize("bad", range(3))
def test_the_rank_that_failed_is_named(group, bad: int) -> None:
    side = group(lambda rank: boom() if rank == bad else timed(1))
    kind, message, took_s = told(side)
    assert (kind, message) == ("ValueError", f"rank {bad}: boom")
    assert took_s < SOON_S


@pytest.mark.parametrize("earliest", range(3))
def test_the_earliest_error_is_the_groups(group, earliest: int) -> None:
    """The others' come of it: what they waited for broke off."""
    side = group(lambda rank: boom(f"of {rank}", after_s=0 if rank == earliest else 0.3 + 0.1 * rank))
    assert told(side)[1] == f"rank {earliest}: of {earliest}"


def test_an_early_error_counts_that_is_read_after_a_late_one(group, monkeypatch) -> None:
    """Rank 1 waits longer for rank 2 than the notice is, and then fails of it."""
    monkeypatch.setattr(peers, "_NOTICE_S", 0.5)
    side = group(lambda rank: [timed(1), None, None][rank] or boom(f"of {rank}", after_s=2.2 - rank))
    assert told(side)[1] == "rank 2: of 2"


def test_an_exit_of_the_interpreter_is_an_error_of_its_rank(group) -> None:
    with pytest.raises(Reported) as error:
        group().close()
    assert error.value.report.kind == "SystemExit"
    assert "of rank " in error.value.report.message


def test_a_rank_that_ends_its_process_is_told_before_what_follows_from_it(group) -> None:
    def do(rank: int) -> None:
        if rank == 2:
            os._exit(0)
        boom("connection closed by peer")

    kind, message, took_s = told(group(do))
    assert (kind, message) == ("RuntimeError", "rank 2: its process ended")
    assert took_s < SOON_S


def test_a_rank_that_ended_before_it_was_asked_is_told(group) -> None:
    side = group(lambda rank: timed(1))
    os.kill(side._peers[1]._pid, signal.SIGKILL)
    assert told(side)[1] == "rank 2: its process ended"


def test_a_child_that_holds_the_channel_does_not_hide_that_its_rank_ended(group) -> None:
    def do(rank: int) -> dict[str, Any]:
        if rank == 1:
            if os.fork() == 0:
                time.sleep(20)
            os._exit(0)
        return timed(1)

    _, message, took_s = told(group(do))
    assert message == "rank 1: its process ended"
    assert took_s < SOON_S


def test_a_rank_that_somebody_else_collected_has_ended(group) -> None:
    side = group(lambda rank: timed(1))
    os.kill(side._peers[0]._pid, signal.SIGKILL)
    os.waitpid(side._peers[0]._pid, 0)
    assert side._peers[0].has_ended()


@pytest.mark.parametrize(("hangs", "fails"), [(1, 0), (1, 2), (2, 1)])
def test_an_error_is_told_within_the_notice_though_another_rank_hangs(
    group, monkeypatch, hangs: int, fails: int
) -> None:
    monkeypatch.setattr(peers, "_NOTICE_S", 0.5)
    side = group(lambda rank: {hangs: lambda: time.sleep(60), fails: boom}.get(rank, lambda: timed(1))())
    kind, message, took_s = told(side)
    assert (kind, message) == ("ValueError", f"rank {fails}: boom")
    assert took_s < peers._NOTICE_S + SOON_S


def test_ranks_that_only_take_their_time_are_waited_for(group, monkeypatch) -> None:
    monkeypatch.setattr(peers, "_NOTICE_S", 0.1)
    assert group(lambda rank: time.sleep(0.4 * rank) or timed(1 + rank)).go() == timed(3)


def test_a_rank_that_failed_ends_its_process(group) -> None:
    """Others that wait for it in a collective notice that."""
    side = group(lambda rank: boom() if rank == 1 else timed(1))
    told(side)
    for _ in range(100):
        if side._peers[0].has_ended():
            break
        time.sleep(0.02)
    assert side._peers[0].has_ended()
    assert not side._peers[1].has_ended()


def test_a_rank_holds_no_end_of_the_others_channels(group) -> None:
    sockets = group(lambda rank: {"sockets": _own_sockets()}, ranks=4)._all("go")
    base = len(sockets[1]["sockets"])
    assert [len(one["sockets"]) for one in sockets[1:]] == [base] * 3
    assert len(sockets[0]["sockets"]) == base + 2, "the first rank's ends of three channels, no other"


def _own_sockets() -> list[str]:
    folder = Path("/proc/self/fd")
    links = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            links.append(os.readlink(folder / name))
    return [link for link in links if link.startswith("socket:")]


@pytest.mark.parametrize("before_it_is_made", [False, True])
def test_a_rank_that_cannot_join_says_why_and_ends_the_group(monkeypatch, before_it_is_made: bool) -> None:
    """The first rank would wait for it for minutes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[4]), *sys.path]))
    begin = time.monotonic()
    with Worker("w", threads=1) as worker, pytest.raises(WorkerDied) as error:
        worker.start("tests.unit.runner.sides_for_tests:Abandoned", before_it_is_made=before_it_is_made)
    assert "killed by SIGKILL during 'start'" in str(error.value)
    assert "no such network" in error.value.failure.output
    assert time.monotonic() - begin < 30


def test_a_first_rank_that_nothing_interrupts_ends_behind_a_peer_with_its_error(tmp_path: Path) -> None:
    said = tmp_path / "said"
    first = os.fork()
    if first == 0:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
        peers._NOTICE_S = 0.05
        peer = Peer(1, lambda rank: Rank(rank, lambda rank: boom("no such message size")), [])
        peers.end_with([peer])
        peer.ask("go", (), {})
        time.sleep(30)
        os._exit(0)
    _, status = os.waitpid(first, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert "rank 1 has ended, and rank 0 waits for it" in said.read_text()
    assert "ValueError: no such message size" in said.read_text()


# ------------------------------------------------------------ start


def test_no_rank_begins_before_the_last_one_is_ready(group) -> None:
    start = Start(3)

    def do(rank: int) -> dict[str, Any]:
        wait = waits[rank]
        time.sleep(0.1 * rank)
        ready = time.monotonic_ns()
        wait()
        return {"ready": ready, "begun": time.monotonic_ns()}

    waits = [start.of(rank) for rank in range(3)]
    side = group(do)
    for _ in range(3):
        each = side._all("go")
        assert min(one["begun"] for one in each) >= max(one["ready"] for one in each)


def test_a_rank_does_not_wait_for_ever_for_one_that_never_gets_ready(monkeypatch) -> None:
    monkeypatch.setattr(peers, "_START_TIMEOUT_S", 0.05)
    with pytest.raises(TimeoutError, match="another rank was not ready"):
        Start(2).of(0)()


def test_one_rank_alone_is_ready_at_once() -> None:
    wait = Start(1).of(0)
    wait()
    wait()


def test_others_do_not_wait_for_a_rank_that_lets_them_go(group) -> None:
    """Once: from its next beginning on they do again."""
    start, begun = Start(2), os.pipe()
    begins = [start.of(rank) for rank in range(2)]

    def do(rank: int) -> dict[str, Any]:
        if rank == 0:
            begins[0]()
            os.write(begun[1], b"0")
        else:
            begins[1].let_go()
            os.read(begun[0], 1)
            begins[1]()
        begins[rank]()
        return {"counts": list(start._counts)}

    assert group(do, ranks=2)._all("go") == [{"counts": [2, 2]}] * 2


def test_answers_of_nobody_are_none() -> None:
    assert peers.answers([], failed=True) == []
