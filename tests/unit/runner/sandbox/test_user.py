"""A worker of a harness that runs as root, where the kernel gives no namespaces."""

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from fastkernels.runner.sandbox import user
from fastkernels.runner.worker import template
from fastkernels.runner.worker.pool import Worker
from tests.unit.runner.worker.test_pool import gone

SIDE = "tests.unit.runner.sides_for_tests:Echo"
ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process another user")


@pytest.fixture(autouse=True)
def no_namespaces(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(template, "OURS", (*template.OURS, "tests.unit.runner.refuses_namespaces"))


def candidate(**arguments) -> Worker:
    """Started; skips where this machine has no other user for it."""
    worker = Worker("candidate", threads=1, namespaces=True, user=True, **arguments)
    worker.start(SIDE)
    if "user" not in worker.isolation:
        worker.close()
        pytest.skip(f"workers stay root here: {worker.stays_root}")
    return worker


def owner(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Uid:")).split()[2])


def look(worker: Worker, code: str):
    return worker.call("look", code=code)["found"]


def test_candidates_have_users_of_their_own_and_the_baseline_another(tmp_path: Path) -> None:
    with candidate() as one, candidate() as other, Worker("b", 1, shared_caches=tmp_path) as baseline:
        baseline.start(SIDE)
        assert "namespace" not in one.isolation
        assert len({owner(worker.pid) for worker in (one, other, baseline)}) == 3
        assert {owner(one.pid), owner(other.pid)} <= set(user.NUMBERS)
        assert look(one, "import os; found = [os.getuid(), os.getgid(), os.getgroups()]") == [
            owner(one.pid),
            owner(one.pid),
            [],
        ]


def test_it_writes_to_its_own_folder_only(tmp_path: Path) -> None:
    with candidate() as one, candidate() as other:
        package = Path(user.__file__).parents[1]
        folder = one.scratch.root
        own = [str(folder / "tmp" / "x"), str(folder / "home" / "x"), "x"]
        others = [str(place / "x") for place in (tmp_path, package, other.scratch.root / "tmp")]
        assert one.call("write", paths=[*own, *others], remounts=False)["written"] == own
    assert not folder.exists(), "the judge removes what belongs to that user"


def test_it_can_neither_signal_nor_look_into_others() -> None:
    with candidate() as one, candidate() as other:
        for pid in (other.pid, os.getpid()):
            code = f"""
import os
def refused(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return True
    return False
found = [refused(os.kill, {pid}, 0), refused(os.setpriority, 0, {pid}, 5)]
"""
            assert look(one, code) == [True, True]
            assert one.call("judge_memory", pid=pid) == {"readable": False}
        assert one.call("judge_memory", pid=one.pid) == {"readable": True}


def test_it_cannot_become_root_again() -> None:
    code = """
import os, subprocess
def works(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return False
    return True
held = [line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")]
found = [works(os.setuid, 0), works(os.setresuid, 0, 0, 0), works(os.chown, ".", 0, 0)]
found += [all(int(words, 16) & ~(1 << 2) == 0 for words in held[:3])]
found += [subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip() != "0"]
"""
    with candidate() as one:
        assert look(one, code) == [False, False, False, True, True]


def test_the_judge_pauses_and_ends_it_and_what_it_started() -> None:
    with candidate() as one:
        child = one.call("spawn")["child"]
        one.pause()
        time.sleep(0.02)
        states = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in (one.pid, child)
        ]
        assert states == ["T", "T"]
        assert one.call("add", a=1, b=1) == {"sum": 2}
        assert one.restless is None
    assert gone(child)


def test_it_ends_with_its_judge() -> None:
    """The order to do so is lost when a process becomes another user, so it comes afterwards."""
    code = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); found = n.value"
    with candidate() as one:
        assert look(one, code) == signal.SIGKILL


def test_descriptors_and_pinned_cores_reach_it(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("from the judge")
    descriptor = os.open(tmp_path / "shared", os.O_RDONLY)
    with candidate(on_cpu=True) as one:
        assert one.call("read", descriptors=[descriptor], size=100) == {"text": "from the judge"}
        assert one.standing().cores <= os.sched_getaffinity(0)
    os.close(descriptor)


def test_what_it_cannot_read_keeps_root_and_says_so(monkeypatch, tmp_path: Path) -> None:
    """A candidate's folder that only root may read, on a system that keeps no privilege for a process."""
    (tmp_path / "L1").mkdir(mode=0o700)
    (tmp_path / "L1" / "rms_norm.py").touch()
    folder = tmp_path / "scratch"
    folder.mkdir()
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(user, "_READ_EVERYTHING", 63)  # no such privilege
        why = user.become(user.unused(), folder, [tmp_path / "L1"])
        fine = os.getuid() == 0 and why != "" and folder.stat().st_uid == 0
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_numbers_belong_to_nobody_and_are_not_given_twice() -> None:
    numbers = [user.unused() for _ in range(20)]
    assert len(set(numbers)) == 20
    assert all(number in user.NUMBERS for number in numbers)


def test_numbers_that_run_out_are_none(monkeypatch) -> None:
    monkeypatch.setattr(user, "NUMBERS", range(1))
    monkeypatch.setattr(user, "_next", itertools.count())
    assert user.unused() == 0
