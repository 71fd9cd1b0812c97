"""The reports of a GPU machine, several at a time: one part on each GPU, from one queue, in the order of the
jobs and, of a job, longest first; where --parts names some, in its order.

    python benchmarks/run_all.py OUT                          everything below, on all GPUs that are visible
    python benchmarks/run_all.py OUT --jobs self_test_llama   some of it
    python benchmarks/run_all.py OUT --resume --within 1500   what OUT has not yet, as much as ends by then
    python benchmarks/run_all.py OUT --jobs self_test --parts '*gla*' '*jamba*'   parts of it
    python benchmarks/run_all.py OUT --jobs gpu_tests_gate gpu_tests_sample --lanes 2   two at a time on a GPU
    python benchmarks/run_all.py OUT --list

A part writes OUT/<its name>.json and .log. Parts that need several GPUs come first, one by one. A long
question is cut into parts of other cases or workloads; when all have ended they are joined into
OUT/<the job>.json. A part that outlasts its limit is interrupted as by Ctrl-C: its report is marked
incomplete, and so is the whole. The same happens to all parts that run when this program is interrupted, by
Ctrl-C or SIGTERM. Durations need a GPU of their own and cores that are not all busy: --lanes is
for tests, which time nothing; audits have processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from jobs import JOBS, Part

STOPPED = threading.Event()  # by whoever interrupts this program
# What an interrupted run may take to end its workers and write its report.
ENDING_S = 90
_LOOK_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument(
        "--parts", nargs="+", default=["*"], metavar="GLOB", help="only these parts of the jobs"
    )
    parser.add_argument("--gpus", help="as CUDA_VISIBLE_DEVICES; default: all")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="parts beside each other on a GPU")
    parser.add_argument("--resume", action="store_true", help="leave out parts whose whole report OUT has")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="start nothing that takes longer")
    parser.add_argument("--list", action="store_true", help="say what would run")
    arguments = parser.parse_args()
    every = [part for job in arguments.jobs for part in sorted(JOBS[job].parts, key=lambda p: -p.seconds)]
    wanted = (part for glob in arguments.parts for part in every if fnmatchcase(part.name, glob))
    # A part that two jobs share, or two globs, runs once.
    parts = list({part.name: part for part in wanted}.values())
    if not parts:
        parser.error(
            f"no part of {', '.join(arguments.jobs)} is called {' or '.join(arguments.parts)}: see --list"
        )
    if arguments.resume:
        parts = [part for part in parts if not _is_there(arguments.out / f"{part.name}.json")]
    if arguments.list:
        print(*(f"{part.seconds:5} s  {' '.join(part.command)}" for part in parts), sep="\n")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpus = arguments.gpus.split(",") if arguments.gpus else _gpus()
    for part in parts:
        if part.gpus > len(gpus):
            print(f"{part.name}: left out, it needs {part.gpus} GPUs and here are {len(gpus)}")
    queue = Queue([part for part in parts if part.gpus <= len(gpus)], arguments.within)
    for part in queue.of(several_gpus=True):
        _run(part, ",".join(gpus[: part.gpus]), arguments.out)

    def serve(gpu: str) -> None:
        for part in queue.of(several_gpus=False):
            _run(part, gpu, arguments.out)

    lanes = [threading.Thread(target=serve, args=(gpu,)) for gpu in gpus * arguments.lanes]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    for job in arguments.jobs:
        _join(job, arguments.out)


class Queue:
    """Parts in order, each to one of the threads that iterate over those for one GPU, or for several;
    within: seconds from now, by which the part should have ended. A part that would outlast them is passed
    over for a shorter one."""

    def __init__(self, parts: list[Part], within: float | None) -> None:
        self._parts, self._lock = parts, threading.Lock()
        self._deadline = None if within is None else time.monotonic() + within

    def of(self, several_gpus: bool) -> Iterator[Part]:
        while (part := self._next(several_gpus)) is not None:
            yield part

    def _next(self, several_gpus: bool) -> Part | None:
        with self._lock:
            left_s = float("inf") if self._deadline is None else self._deadline - time.monotonic()
            those = [part for part in self._parts if (part.gpus > 1) == several_gpus]
            fitting = [part for part in those if part.seconds <= left_s]
            if not fitting or STOPPED.is_set():
                return None
            self._parts.remove(fitting[0])
            return fitting[0]


def _is_there(report: Path) -> bool:
    """Whether a part's report is there, and not one of a run that was interrupted."""
    return report.is_file() and json.loads(report.read_text()).get("complete", True)


def _is_readable(report: Path) -> bool:
    """Whether the file is there and whole."""
    try:
        json.loads(report.read_text())
    except (OSError, ValueError):
        return False
    return True


def _gpus() -> list[str]:
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return [str(number) for number in range(len(listed.splitlines()))]


def _run(part: Part, gpu: str, out: Path) -> None:
    begin = time.monotonic()
    command = [sys.executable, *part.command, str(out / f"{part.name}.json")]
    with (out / f"{part.name}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
            start_new_session=True,
        )
        if (status := _ended(process, 2 * part.seconds)) is not None:
            how = str(status)
        else:
            process.send_signal(signal.SIGINT)
            try:
                how = f"{process.wait(ENDING_S)}, interrupted"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                how = "killed: no report"
    print(f"{part.name}: exit {how}, {time.monotonic() - begin:.0f} s on GPU {gpu}", flush=True)


def _ended(process: subprocess.Popen, limit_s: float) -> int | None:
    """Its exit status; None where it did not end by then, or is to be interrupted."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not STOPPED.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
    return process.poll()


def _join(name: str, out: Path) -> None:
    job, whole = JOBS[name], out / f"{name}.json"
    if job.join is not None:
        whole.unlink(missing_ok=True)  # of an earlier run
    paths = [out / f"{part.name}.json" for part in job.parts]
    if missing := [path.name for path in paths if not path.is_file()]:
        print(f"{name}: not joined, {', '.join(missing)} missing")
        return
    if job.join is not None:
        command = [sys.executable, *job.join, *map(str, paths), job.out, str(whole)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # The status also says how the whole came out: a report with failures is joined, too.
        if done.returncode and not _is_readable(whole):
            whole.unlink(missing_ok=True)
            print(f"{name}: not joined, exit {done.returncode}\n{done.stderr}")
            return
    print(f"{name}: {whole}")


def heed_interrupts() -> None:
    """Also for the parts, which would ignore SIGINT where this program does, in the background of a shell."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: STOPPED.set())


if __name__ == "__main__":
    heed_interrupts()
    main()
