"""What the filter on system calls, and the kernel beside it, keep a worker from."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastkernels.runner.worker import pool, process
from fastkernels.runner.worker.pool import Worker

ROOT = Path(__file__).parents[4]
SIDE = "tests.unit.runner.sides_for_tests:Echo"
CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    return -ctypes.get_errno() if libc.syscall(*arguments) < 0 else 0
"""
_EPERM, _ENOSYS = -1, -38


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        with Worker("candidate", threads=1) as started:
            started.start(SIDE)
            if "group" not in started.isolation:
                pytest.skip("this system filters no system calls")
            yield started


def look(worker: Worker, code: str):
    return worker.call("look", code=CALL + code)["found"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_what_is_refused(worker: Worker) -> None:
    calls = {
        "shmget": (29, 7, 4096, 0o1600),
        "semget": (64, 7, 1, 0o1600),
        "msgget": (68, 7, 0o1600),
        "mq_open": (240, None, 0, 0, None),
        "unshare": (272, 0x10000000),
        "setns": (308, 0, 0),
        "timer_create": (222, 0, None, None),
        "PR_SET_PDEATHSIG SIGCONT": (157, 1, int(signal.SIGCONT), 0, 0, 0),
        "clone that ends with SIGCONT": (56, int(signal.SIGCONT), 0, 0, 0, 0),
        "clone in a user namespace": (56, 0x10000000 | int(signal.SIGCHLD), 0, 0, 0, 0),
        "clone of a sibling": (56, 0x8000 | int(signal.SIGCHLD), 0, 0, 0, 0),
    }
    found = look(worker, f"found = {{name: call(*c) for name, c in {calls!r}.items()}}")
    assert found == dict.fromkeys(calls, _EPERM)
    absent = {"clone3": (435, None, 0), "io_uring_setup": (425, 1, None)}
    found = look(worker, f"found = {{name: call(*c) for name, c in {absent!r}.items()}}")
    assert found == dict.fromkeys(absent, _ENOSYS)


def test_threads_processes_and_their_ends_are_as_ever(worker: Worker) -> None:
    code = """
import multiprocessing, subprocess, sys, threading
done = []
thread = threading.Thread(target=lambda: done.append(1))
thread.start(); thread.join()
done.append(subprocess.run([sys.executable, "-c", "print(2)"], capture_output=True, text=True).stdout)
child = multiprocessing.get_context("fork").Process(target=__import__("time").sleep, args=(60,))
child.start(); child.terminate(); child.join()
call(157, 1, 9, 0, 0, 0)
found = [*done, child.exitcode]
"""
    assert look(worker, code) == [1, "2\n", -signal.SIGTERM]


def test_no_signal_reaches_the_judge(worker: Worker) -> None:
    if "signals" not in worker.isolation:
        pytest.skip("this kernel does not confine signals")
    code = f"""
found = []
for pid in ({os.getpid()}, os.getppid()):
    try:
        os.kill(pid, {int(signal.SIGURG)})  # which nobody would notice
    except PermissionError:
        found.append(pid)
"""
    assert os.getpid() in look(worker, code)


COPIES = """
import mmap, time
libc.process_vm_readv.argtypes = [ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
size, times = 16 << 20, 60
memories = [mmap.mmap(-1, size) for _ in range(2)]
here, there = (
    (Vector * times)(*[(ctypes.addressof(ctypes.c_char.from_buffer(m)), size)] * times) for m in memories
)
"""
BUSY = f"""{COPIES}
found = os.fork()
if found == 0:
    libc.process_vm_readv(os.getpid(), here, times, there, times, 0)
    time.sleep(60)
    os._exit(0)
time.sleep(0.02)
"""
LATE = f"""{COPIES}
import threading
copy = lambda: libc.process_vm_readv(os.getpid(), here, times, there, times, 0)
begin = time.perf_counter()
copy()
found = time.perf_counter() - begin
threading.Thread(target=copy, daemon=True).start()
time.sleep(0.005)
"""

ASKED = f"""{COPIES}
copy = lambda: libc.process_vm_readv(os.getpid(), here, times, there, times, 0)
begin = time.perf_counter()
copy()
alone_s = time.perf_counter() - begin
ours, asks = os.pipe()
child = os.fork()
while child == 0:
    os.read(ours, 1)
    copy()
found = [child, asks, alone_s]
"""


def test_a_pause_waits_for_a_child_in_the_middle_of_a_system_call(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_COMPANY_TIMEOUT_S", 20)  # a busy machine's share of a core is small
    child = look(worker, BUSY)
    worker.pause(looks=True)
    assert process.others(worker.pid) == [child]
    assert process.stands_still(child)
    assert worker.restless is None
    before = process.cpu_ns(child)
    time.sleep(0.05)
    assert process.cpu_ns(child) == before
    worker.resume()
    assert worker.restless is None
    look(worker, f"os.kill({child}, 9); os.waitpid({child}, 0); found = 1")


def test_a_pause_tells_when_the_last_thread_stood_still(worker: Worker) -> None:
    """A thread in a system call goes on after the answer: what it writes until then has taken that long."""
    alone_s = look(worker, LATE)
    begin = time.perf_counter_ns()
    assert (worker.pause() - begin) / 1e9 > 0.3 * alone_s


def test_looking_for_a_child_is_no_work_of_it(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    child, asks, alone_s = look(worker, ASKED)
    worker.pause(looks=True)
    worker.resume()
    found = process.others(worker.pid)
    monkeypatch.setattr(process, "others", lambda _: time.sleep(0.05) or found)
    begin = time.perf_counter_ns()
    assert (worker.pause() - begin) / 1e9 < 0.04, "it sleeps"
    look(worker, f"import time; found = os.write({asks}, b'x'); time.sleep(0.005)")
    begin = time.perf_counter_ns()
    assert (worker.pause() - begin) / 1e9 > 0.3 * alone_s, "it copies"
    look(worker, f"os.kill({child}, 9); os.waitpid({child}, 0); found = 1")


def test_a_child_that_runs_on_is_told(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_COMPANY_TIMEOUT_S", 0.05)
    child = look(worker, BUSY.replace("times = 16 << 20, 60", "times = 16 << 20, 900"))
    worker.pause()
    assert worker.restless is not None, "a worker with company is looked after in every pause"
    assert str(child) in worker.restless
    worker.restless = None
    look(worker, f"os.kill({child}, 9); os.waitpid({child}, 0); found = 1")


def test_a_child_that_somebody_continues_is_told(worker: Worker) -> None:
    child = look(worker, "found = os.fork()\nif not found:\n    while True: pass")
    worker.pause(looks=True)
    os.kill(child, signal.SIGCONT)
    time.sleep(0.05)
    worker.resume()
    assert worker.restless == f"had process {child} of its own run"
    worker.restless = None
    look(worker, f"os.kill({child}, 9); os.waitpid({child}, 0); found = 1")
