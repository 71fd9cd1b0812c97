"""Cases audited in processes beside each other, on every GPU that is visible, as many at a time as fit.

    for done in beside(cases, "cuda", seed=0, processes=24, timeout_s=1200):
        print(done.case.id, done.row or done.reason)

An audit times nothing, so processes may share a GPU and the cores. On each device one of them takes the
largest case that fits into what the others leave, and those take the smallest: large ones, one after another,
do not keep small ones waiting. Those that would leave nothing for others come last.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import torch

from fastkernels.audit.room import Audited, audited, collecting_cases_alone, needed_bytes
from fastkernels.free_memory import available_bytes
from fastkernels.records import Case, Device
from fastkernels.registry.schema import TaskEntry

FILLED = 0.95  # of what is free on a device: what a case needs is a guess
PROCESS_BYTES = 3 << 30  # a context, kernels and their workspaces, whether or not anything is audited
OF_LARGE = 0.75  # of a device, for the large case of the moment
# For a process to end its case, and for a killed one to be gone, which one that waits for a GPU never is.
_END_S = 60


def beside(
    found: Sequence[tuple[TaskEntry, Case]], device: Device, seed: int, processes: int, timeout_s: float
) -> Iterator[Audited]:
    """Each case as it ends; the processes end with the iterator. What found no room, or whose process died,
    is tried again with a quarter of a device, and at last with all of it. A case that outlasts `timeout_s`
    is not tried again: its process ends it, or is killed where it hangs."""
    # Large cases beside each other leave no room for what an allocator keeps in pieces: of ten that fitted
    # seven ran out of memory.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    processes = min(processes, len(found))
    places = _places(device, processes)
    lanes = [_Lane(places[i % len(places)], device, seed, processes, timeout_s) for i in range(processes)]
    largest_first = lanes[: len(places)]
    try:
        pending = [_Job(entry, case, needed_bytes(entry, case)) for entry, case in found]
        while pending or any(lane.job for lane in lanes):
            for lane in (lane for lane in lanes if lane.job is None):
                if job := lane.place.chosen(pending, largest=lane in largest_first):
                    pending.remove(job)
                    lane.begin(job)
            running = [lane for lane in lanes if lane.job]
            longest = max(time.monotonic() - lane.begun for lane in running)
            ready = wait([lane.connection for lane in running], max(0, timeout_s + _END_S - longest))
            for lane in running:
                lasted = time.monotonic() - lane.begun
                if lane.connection not in ready and lasted < timeout_s + _END_S:
                    continue
                job, done = lane.end() if lane.connection in ready else lane.stop()
                if done.row or lasted >= timeout_s or job.bytes >= lane.place.bytes:
                    yield done
                else:
                    more = 4 * max(job.bytes, lane.place.bytes // 16)
                    pending.append(_Job(job.entry, job.case, min(more, lane.place.bytes)))
    finally:
        for lane in lanes:
            lane.close()


@dataclass(frozen=True)
class _Job:
    entry: TaskEntry
    case: Case
    bytes: int


@dataclass
class _Place:
    """A GPU by its name in CUDA_VISIBLE_DEVICES, or the memory beside the CPU. `bytes`: for cases."""

    device: torch.device
    gpu: str | None
    bytes: int
    taken: int = 0

    def chosen(self, jobs: Sequence[_Job], largest: bool) -> _Job | None:
        """The largest or smallest that fits; where nothing is and nothing fits, the smallest may try."""
        room = min(self.bytes - self.taken, _free(self.device))
        fitting = sorted((job for job in jobs if job.bytes <= room), key=lambda job: job.bytes)
        if not fitting and not self.taken:
            return min(jobs, key=lambda job: job.bytes, default=None)
        leaving_some = [job for job in fitting if job.bytes <= OF_LARGE * self.bytes]
        if largest and leaving_some:
            return leaving_some[-1]
        return next(iter(fitting), None)


class _Lane:
    """A process and what it audits."""

    def __init__(self, place: _Place, device: Device, seed: int, processes: int, timeout_s: float) -> None:
        self.place = place
        self.job: _Job | None = None
        self.begun = 0.0  # by time.monotonic
        threads = max(1, (os.cpu_count() or 1) // processes)
        self._timeout_s = timeout_s
        self._arguments = (place.gpu, device, seed, threads, timeout_s)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, job: _Job) -> None:
        self.job, self.begun = job, time.monotonic()
        self.place.taken += job.bytes
        with contextlib.suppress(ConnectionError):  # of a process that has died: `end` hears nothing of it
            self.connection.send((job.entry, job.case))

    def end(self) -> tuple[_Job, Audited]:
        """What its process says, or that it has died."""
        job = self._free()
        try:
            done, is_last = self.connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            reason = f"its process ended with exit code {self._process.exitcode}"
            done, is_last = Audited(job.case, None, reason), True
        if is_last:
            self._renew()
        return job, done

    def stop(self) -> tuple[_Job, Audited]:
        """Of a process that does not even end its case."""
        job = self._free()
        self._process.kill()
        self._renew()
        return job, Audited(job.case, None, f"{_late(self._timeout_s)}: its process hung and was killed")

    def _renew(self) -> None:
        self._process.join(_END_S)
        self.close()
        self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.join(_END_S)
        self.connection.close()

    def _free(self) -> _Job:
        assert self.job
        job, self.job = self.job, None
        self.place.taken -= job.bytes
        return job


def _places(device: Device, processes: int) -> list[_Place]:
    if device == "cpu":
        found: list[tuple[torch.device, str | None]] = [(torch.device("cpu"), None)]
    else:
        numbers = range(torch.cuda.device_count())
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else [str(number) for number in numbers]
        found = [(torch.device("cuda", number), names[number]) for number in numbers]
    lanes = -(-processes // len(found))
    return [_Place(where, gpu, _free(where) - lanes * PROCESS_BYTES) for where, gpu in found]


def _free(device: torch.device) -> int:
    """Bytes that may be filled; plenty where the system does not say."""
    return int(FILLED * (available_bytes(device) or 1 << 60))


class _Late(BaseException):
    """No error of the audit, and not to be taken for one of an implementation."""


def _serve(
    connection: Connection, gpu: str | None, device: Device, seed: int, threads: int, timeout_s: float
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks heeds it, and ends this one
    signal.signal(signal.SIGALRM, _end_case)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    # Each process compiles for itself: a pool of compilers for every one of them would be hundreds.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch.set_num_threads(threads)
    with collecting_cases_alone(), contextlib.suppress(EOFError):  # whoever asked is gone
        while True:
            entry, case = connection.recv()
            done, is_last = _in_time(entry, case, device, seed, timeout_s)
            connection.send((done, is_last))
            if is_last:
                return


def _in_time(
    entry: TaskEntry, case: Case, device: Device, seed: int, timeout_s: float
) -> tuple[Audited, bool]:
    """And whether this process should end: an import that the alarm interrupts cannot be done again.

    It ends itself. Killed amid its kernels it may take others with it that share a GPU by NVIDIA's MPS: four
    met an illegal memory access right after that, on an H100.
    """
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        return audited(entry, case, device, seed), False
    except _Late:
        return Audited(case, None, _late(timeout_s)), True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end_case(*_: object) -> None:
    raise _Late


def _late(timeout_s: float) -> str:
    return f"not ended after {timeout_s:g} s"
