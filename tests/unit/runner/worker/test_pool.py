"""Real worker processes with light sides: what they answer, how they fail, and that nothing of them stays."""

import errno
import os
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest

from fastkernels.runner.sandbox import flashinfer_builds, isolation
from fastkernels.runner.transfer import hold_gate
from fastkernels.runner.worker.pool import Worker, WorkerDied, WorkerError

SIDE = "tests.unit.runner.sides_for_tests:Echo"
ROOT = Path(__file__).parents[4]
MODULES = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(autouse=True)
def importable(monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", MODULES)
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("FK_SEED", "42")


@pytest.fixture(scope="module")
def worker():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", MODULES)
        patch.setenv("HF_TOKEN", "secret")
        patch.setenv("FK_SEED", "42")
        with Worker("w", threads=1, namespaces=True) as worker:
            assert worker.start(SIDE, greeting="good day") == {"greeting": "good day"}
            yield worker


def started(name: str = "w") -> Worker:
    worker = Worker(name, threads=1)
    worker.start(SIDE)
    return worker


def gone(pid: int) -> bool:
    """Whether no such process runs any more (one that its new parent has yet to collect counts as gone)."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_calls_are_answered(worker: Worker) -> None:
    assert worker.call("add", a=2, b=3) == {"sum": 5}


def at_gate(worker: Worker, do: str, timeout_s: float = 10, **arguments) -> socket.socket:
    """The judge's end of the gate at which it waits."""
    ours, theirs = hold_gate.pair()
    with theirs:
        worker.ask(do, [theirs.fileno()], **arguments)
    try:
        worker.wait_at(ours, timeout_s)
    except BaseException:
        ours.close()
        raise
    return ours


def test_a_worker_waits_at_its_gate_and_answers_behind_it(worker: Worker) -> None:
    with at_gate(worker, "go_through") as channel:
        still_ns = worker.pause()
        assert hold_gate.said(channel) == b"here"
        assert hold_gate.said(channel) == b""
        channel.send(b"word")
        worker.resume()
        begin_ns = time.perf_counter_ns()
        worker.wait_at(channel, 10)
        assert still_ns < begin_ns < worker.pause()
        assert hold_gate.said(channel) == b"word"
        assert worker.busy
        assert worker.answer(10) == {"through": True}
        assert not worker.busy


def test_who_does_not_come_to_its_gate_in_time_lives_on(worker: Worker) -> None:
    ours, theirs = hold_gate.pair()
    with ours, theirs:
        worker.ask("nap", seconds=0.3)
        assert not worker.comes_to(ours, 0.05), "it sleeps"
        assert worker.comes_to(ours, 10), "it answers, which whoever waits for it is told"
        worker.answer(10)
    assert worker.call("add", a=2, b=3) == {"sum": 5}


def test_who_fails_before_the_gate_is_heard(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="unexpected keyword argument 'descriptors'"):
        at_gate(worker, "add", a=1, b=2)
    assert worker.call("add", a=2, b=3) == {"sum": 5}


def test_who_answers_without_having_been_at_the_gate_has_crashed() -> None:
    with started() as worker:
        with pytest.raises(WorkerDied, match=r"no valid reply \(it passed the gate by\)") as caught:
            at_gate(worker, "pass_by")
        assert caught.value.status == "CRASHED"


def test_who_does_not_come_to_the_gate_is_not_waited_for() -> None:
    with started() as worker:
        with pytest.raises(WorkerDied, match=r"no answer to 'hang_before' within 0\.2 s") as caught:
            at_gate(worker, "hang_before", timeout_s=0.2)
        assert caught.value.status == "TIMEOUT"


def test_the_environment_holds_no_secret_and_a_home_of_its_own(worker: Worker) -> None:
    seen = worker.call("environment")
    variables = seen["variables"]
    assert not {"HF_TOKEN", "FK_SEED"} & set(variables)
    assert "42" not in "".join(seen["arguments"])
    assert variables["HOME"] == str(worker.scratch.root / "home")
    assert variables["OMP_NUM_THREADS"] == "1"
    assert Path(seen["folder"]) == worker.scratch.root / "work"
    for name in ("TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert Path(variables[name]).is_relative_to(worker.scratch.root)


def test_namespaces_leave_the_loopback_alone(worker: Worker) -> None:
    if "network" not in worker.isolation:
        pytest.skip("this kernel gives no namespaces to this user")
    assert worker.call("network") == {"interfaces": ["lo"]}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity that can be set")
def test_pinned_workers_share_their_cores() -> None:
    mine = sorted(os.sched_getaffinity(0))
    with Worker("a", threads=1, on_cpu=True) as a, Worker("b", threads=1, on_cpu=True) as b:
        for worker in (a, b):
            worker.start(SIDE)
            assert worker.standing().cores == {mine[-1]}
    with Worker("all", threads=len(mine), on_cpu=True) as worker:
        worker.start(SIDE)
        assert worker.standing().cores == set(mine)


def test_descriptors_travel(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("from the judge")
    descriptor = os.open(tmp_path / "shared", os.O_RDONLY)
    assert worker.call("read", descriptors=[descriptor], size=100) == {"text": "from the judge"}
    os.close(descriptor)


def test_an_exception_is_reported_and_the_worker_lives_on(worker: Worker) -> None:
    with pytest.raises(WorkerError) as caught:
        worker.call("fail", message="no such tile")
    assert caught.value.kind == "ValueError"
    assert caught.value.failure.message == "ValueError: no such tile"
    assert "before the failure" in caught.value.failure.output
    assert "raise ValueError(message)" in caught.value.failure.output
    with pytest.raises(WorkerError, match="SystemExit"):
        worker.call("exit")
    assert worker.call("add", a=1, b=1) == {"sum": 2}


def test_an_exception_whose_words_cannot_be_sent_is_no_crash(worker: Worker) -> None:
    with pytest.raises(WorkerError) as caught:
        worker.call("fail", message="a compiler's \udcff")
    assert caught.value.failure.message == "ValueError: a compiler's \\udcff"
    with pytest.raises(WorkerError) as caught:
        worker.call("fail_speechless")
    assert caught.value.kind == "Speechless"


def test_a_start_that_says_something_else_is_a_crash(monkeypatch) -> None:
    with Worker("w", threads=1) as worker:
        monkeypatch.setattr(worker, "call", lambda *_, **__: {"isolation": 5})
        with pytest.raises(WorkerDied, match="its answer was no valid reply"):
            worker.start(SIDE)


def test_the_place_of_what_ends_the_building_of_a_side_is_known() -> None:
    with Worker("w", threads=1) as worker, pytest.raises(WorkerError, match="not today") as caught:
        worker.start("tests.unit.runner.sides_for_tests:Unbuildable")
    assert (caught.value.failure.file, caught.value.failure.line) == ("candidate.py", 7)


@pytest.mark.parametrize(("where", "step"), [(flashinfer_builds, "lend"), (isolation.Scratch, "environment")])
def test_a_worker_that_is_interrupted_while_it_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch, where, step
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(where, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        Worker("w", threads=1)
    assert not [*tmp_path.iterdir()]


def test_the_place_of_an_import_that_fails_is_known(tmp_path: Path) -> None:
    package = tmp_path / "other" / "fastkernels"
    shutil.copytree(ROOT / "src" / "fastkernels", package)
    for text, line in (("x = 1\nimport no_such_module\n", 2), ("def f(:\n", 1)):
        (package / "kernels" / "mark.py").write_text(text)
        with Worker("w", threads=1, source=package.parent) as worker:
            worker.start(SIDE)
            assert worker.imported
        with Worker("w", threads=1, source=package.parent) as worker:
            with pytest.raises(WorkerError) as caught:
                worker.start("fastkernels.kernels.mark:Side")
            assert not worker.imported
            place = (caught.value.failure.file, caught.value.failure.line)
            assert place == (str(package / "kernels" / "mark.py"), line)


def test_a_signal_without_a_name_ends_one_worker() -> None:
    with started() as worker, pytest.raises(WorkerDied, match="was killed by signal 40 during 'look'"):
        worker.call("look", code="import os; os.kill(os.getpid(), 40)")


def test_a_paused_worker_stands_still_until_its_next_call(worker: Worker) -> None:
    worker.call("beat")
    worker.pause()
    before = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    time.sleep(0.1)
    after = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    assert after[0] == "T"
    assert before[11:13] == after[11:13], "it used CPU time while it was paused"
    assert worker.call("count")["beats"] > 0
    assert worker.restless is None


@pytest.mark.parametrize("hides", [False, True])
def test_a_paused_worker_that_somebody_continues_is_seen(worker: Worker, hides: bool) -> None:
    """Even if it is stopped again before anybody looks."""
    worker.pause()
    os.kill(worker.pid, signal.SIGCONT)
    if hides:
        time.sleep(0.02)
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(0.02)
    assert worker.call("add", a=1, b=1) == {"sum": 2}
    assert worker.restless == "was continued"
    worker.restless = None
    for _ in range(20):
        worker.pause()
        worker.call("add", a=1, b=1)
    assert worker.restless is None, "our own signals are taken for somebody else's"


def test_a_worker_that_somebody_stops_in_its_turn_is_seen(worker: Worker) -> None:
    worker.meddled = None
    for _ in range(20):
        worker.pause()
        worker.call("add", a=1, b=1)
    assert worker.meddled is None, "our own signals are taken for somebody else's"
    os.kill(worker.pid, signal.SIGSTOP)
    while state(worker.pid) != "T":
        time.sleep(0.001)
    os.kill(worker.pid, signal.SIGCONT)
    worker.pause()
    assert worker.meddled == "was stopped in its turn"
    assert worker.restless is None
    worker.meddled = None
    os.kill(worker.pid, signal.SIGCONT)
    worker.resume()
    assert worker.meddled == "was continued in another's turn"
    worker.restless = worker.meddled = None


def test_who_is_interrupted_in_a_pause_is_not_left_with_a_process_that_stands_still(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = worker._process.send

    def interrupted(number: signal.Signals) -> None:
        send(number)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker._process, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.pause()
    assert worker.call("add", 10, a=2, b=3) == {"sum": 5}


def test_a_pause_waits_until_the_process_stands_still(worker: Worker) -> None:
    worker.call("beat")
    for _ in range(50):
        worker.pause()
        assert state(worker.pid) == "T"
        worker.resume()


def test_the_judges_memory_is_hidden(worker: Worker) -> None:
    with isolation.HiddenMemory() as memory:
        if not memory.hidden or "namespace" not in worker.isolation:
            pytest.skip("needs Linux and namespaces")
        assert worker.call("judge_memory", pid=os.getpid()) == {"readable": False}


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_that_ends_has_crashed_whatever_its_status(status: int) -> None:
    worker = started("candidate")
    with pytest.raises(WorkerDied) as caught:
        worker.call("leave", status=status)
    assert caught.value.status == "CRASHED"
    assert (
        f"candidate: the process exited with status {status} during 'leave'" in caught.value.failure.message
    )
    assert caught.value.failure.output == "leaving"
    assert not worker.alive
    assert not worker.scratch.root.exists()


def test_garbage_on_the_channel_is_a_crash() -> None:
    worker = started()
    with pytest.raises(WorkerDied, match="no valid reply") as caught:
        worker.call("garbage", body=b"FKv1" + bytes(7) + b"\x02{}")
    assert caught.value.status == "CRASHED"
    assert gone(worker.pid)


def test_a_hang_is_ended_with_its_whole_group() -> None:
    worker = started()
    child = worker.call("spawn")["child"]
    begin = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        worker.call("hang", 0.3)
    assert time.monotonic() - begin < 5
    assert caught.value.status == "TIMEOUT"
    assert "no answer to 'hang' within 0.3 s" in caught.value.failure.message
    assert "about to hang" in caught.value.failure.output
    assert gone(worker.pid)
    assert gone(child)


def test_a_worker_of_another_source_imports_that(tmp_path: Path) -> None:
    package = tmp_path / "other" / "fastkernels"
    shutil.copytree(ROOT / "src" / "fastkernels", package)
    (package / "kernels" / "mark.py").write_text("print('the other source')\nSide = dict\n")
    with Worker("w", threads=1, source=package.parent) as worker:
        worker.start(SIDE)
        ours = worker.call("look", code="import sys; found = 'fastkernels.kernels' in sys.modules")
        assert ours == {"found": False}, "nothing of a revision's kernels runs before the worker is separated"
        worker.start("fastkernels.kernels.mark:Side")
        assert "the other source" in worker.scratch.printed()
        worker.start(SIDE)
        paths = worker.call("environment")["variables"]["PYTHONPATH"].split(os.pathsep)
        assert paths[:2] == [str(package.parent), str(ROOT)], "the caller's own paths stay, behind it"


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_child_that_asks_for_a_session_of_its_own_is_paused_and_ended_all_the_same() -> None:
    worker = started()
    if "group" not in worker.isolation:
        pytest.skip("this system filters no system calls")
    child = worker.call("spawn_apart")["child"]
    worker.pause()
    time.sleep(0.05)
    assert state(child) == "T"
    worker.close()
    assert gone(child)


def test_a_worker_writes_to_its_own_folder_only(tmp_path: Path) -> None:
    with Worker("candidate", threads=1, namespaces=True) as candidate:
        candidate.start(SIDE)
        if "files" not in candidate.isolation:
            pytest.skip("this system does not let processes change their own mounts")
        own = [str(candidate.scratch.root / "tmp" / "x"), "x", "/dev/shm/fk-x"]
        written = candidate.call("write", paths=[*own, str(tmp_path / "x")], remounts=True)["written"]
        assert written == own
        assert (candidate.scratch.root / "work" / "x").exists()
        assert not Path("/dev/shm/fk-x").exists(), "its own /dev/shm is nobody else's"
    with started() as trusted:
        assert trusted.call("write", paths=[str(tmp_path / "x")], remounts=False)["written"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is no other core to go to")
def test_a_worker_and_what_it_starts_stay_on_its_cores() -> None:
    with Worker("candidate", threads=1, namespaces=True, on_cpu=True) as candidate:
        candidate.start(SIDE)
        if "group" not in candidate.isolation:
            pytest.skip("this system filters no system calls")
        assert candidate.call("take_all_cores") == {"own": 1, "child": 1}


def test_a_worker_cannot_make_the_system_continue_it(worker: Worker) -> None:
    if "group" not in worker.isolation:
        pytest.skip("this system filters no system calls")
    assert worker.call("wake") == {"timer": errno.EPERM, "descriptor": errno.EPERM}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything where there are no namespaces")
def test_the_baselines_memory_is_hidden_from_candidates(tmp_path: Path) -> None:
    with Worker("baseline", threads=1, shared_caches=tmp_path) as baseline, started() as candidate:
        baseline.start(SIDE)
        assert candidate.call("judge_memory", pid=candidate.pid) == {"readable": True}
        assert candidate.call("judge_memory", pid=baseline.pid) == {"readable": False}


def test_another_priority_of_a_process_is_seen() -> None:
    with started() as worker:
        before = worker.standing()
        assert before is not None
        os.setpriority(os.PRIO_PROCESS, worker.pid, before.nice + 5)
        assert worker.standing() == before._replace(nice=before.nice + 5)


def test_a_worker_ends_with_its_judge_even_when_it_is_paused(tmp_path: Path) -> None:
    """The judge is killed without a chance to clean up."""
    import subprocess
    import sys

    script = (
        "import os, signal, sys; from fastkernels.runner.worker.pool import Worker\n"
        f"w = Worker('w', 1); w.start({SIDE!r}); w.pause(); print(w.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    # Its scratch folder stays behind, as nobody is left to remove it.
    surroundings = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=surroundings
    )
    assert done.returncode == -9, done.stderr
    assert gone(int(done.stdout))
