"""Jobs in a child process: one that hangs or faults costs one job, and what was finished is written.

The child says a line of JSON for each outcome, with `job` where one is done.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from committed import write

PATIENCE = 20.0  # seconds without a line from the child
FIRST_PATIENCE = 90.0  # imports and CUDA's start
MOST_LOST = 3  # processes, before the rest is left out


def say(**outcome: object) -> None:
    print(json.dumps(outcome), flush=True)


def us(call: Callable[[], object]) -> float:
    """Median of a call in a replayed CUDA graph, in microseconds."""
    import torch
    import triton

    from fastkernels.kernels import counters

    call()
    counters.prepare()
    torch.cuda.synchronize()
    return triton.testing.do_bench_cudagraph(call, rep=25, return_mode="median") * 1e3  # pyright: ignore


def lines_of(process: subprocess.Popen) -> Iterator[str | None]:
    """Lines of the child; None, and the end, where it was silent for too long."""
    queue: Queue[str | None] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            queue.put(line)
        queue.put(None)

    threading.Thread(target=read, daemon=True).start()
    patience = FIRST_PATIENCE
    while True:
        try:
            line = queue.get(timeout=patience)
        except Empty:
            yield None
            return
        if line is None:
            return
        patience = PATIENCE
        yield line


class Report:
    """What was seen so far, as it is written."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind
        self.rows: list[dict] = []
        self.checks: list[dict] = []
        self._environment: Any = None

    @property
    def wrong(self) -> list[dict]:
        return [one for one in self.checks if not one.get("right")]

    @property
    def geomean(self) -> float | None:
        ratios = [row["ratio"] for row in self.rows if "ratio" in row]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None

    def take(self, outcome: dict) -> None:
        print(json.dumps(outcome), flush=True)
        self._environment = outcome.get("environment", self._environment)
        if "job" in outcome:
            (self.checks if outcome["job"][0] == "check" else self.rows).append(outcome)
        rows = [{"case": str(row["job"]), **row} if "failed" in row else row for row in self.rows]
        left_out = ("job", "seconds")
        write(
            {
                "kind": self._kind,
                "rows": [{k: v for k, v in row.items() if k not in left_out} for row in rows],
                "geomean": self.geomean,
                "checks": [{k: v for k, v in one.items() if k not in left_out} for one in self.checks],
                "environment": self._environment,
            },
            self._path,
        )


def run(
    program: str, jobs: list[list], options: list[str], seconds: float, vllm_path: Path | None, report: Report
) -> None:
    """The jobs in `program --child JOBS OPTIONS`, until the seconds are over. vllm_path: vLLM's packages."""
    paths = [os.environ.get("PYTHONPATH", ""), str(vllm_path.expanduser()) if vllm_path else ""]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    lost, end = 0, time.monotonic() + seconds
    while jobs and lost < MOST_LOST and time.monotonic() < end:
        command = [sys.executable, program, "--child", json.dumps(jobs), *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
        )
        said: list[str] = []
        why = ""
        for line in lines_of(process):
            if line is None:
                why = "silent for too long"
                break
            try:
                outcome = json.loads(line)
            except ValueError:
                said.append(line.rstrip())
                continue
            report.take(outcome)
            if "job" in outcome:
                jobs = jobs[1:]
                why = "the one before it failed" if "failed" in outcome else ""
            if time.monotonic() >= end:
                break
        process.kill()
        process.wait()
        if jobs and time.monotonic() < end:
            lost += 1
            if why != "the one before it failed":
                why = why or f"the process ended with {process.returncode}"
                report.take({"job": jobs[0], "failed": why, "said": said[-12:]})
                jobs = jobs[1:]
    print(f"{len(jobs)} jobs were not run")
