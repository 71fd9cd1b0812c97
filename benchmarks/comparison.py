"""What programs share that hold our engine against another: each side in a process, whole runs timed.

found = in_a_process(__file__, ["--side", "vllm"], packages)    one side after the other: each has all memory
finish(result_file, found)                                      what the process does last
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Nothing is fetched and nothing is told to anybody while a side runs.
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


def in_a_process(
    program: str, arguments: list[str], packages: Path | None = None, kept: Path | None = None
) -> dict[str, Any]:
    """What `program arguments --result FILE` writes. packages: a folder that its imports look into first.
    kept: the file, if it stays: a program that writes what it has so far leaves that where it is cut off.
    """
    env = {**os.environ, **QUIET}
    if packages:
        folders = [str(packages.expanduser()), env.get("PYTHONPATH")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    with tempfile.TemporaryDirectory() as folder:
        result = kept or Path(folder) / "result.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, program, *arguments, "--result", str(result)]
        code = subprocess.run(command, env=env, check=False).returncode
        if code or not result.is_file():
            sys.exit(f"{' '.join(arguments)} ended with {code}; what it said is above")
        return json.loads(result.read_text())


def finish(result: Path, found: dict[str, Any]) -> None:
    result.write_text(json.dumps(found))


def timed(
    run: Callable[[], Any], *, warm_ups: int, runs: int, budget_s: float = math.inf
) -> tuple[Any, dict[str, Any]]:
    """What the last run returned, and seconds: their median, each, and the first warm-up's.

    `run` returns when all of its work is done. Warm-ups and runs each end early, after one at least, when
    budget_s is spent on them.
    """
    warm = _repeated(run, warm_ups, budget_s)[1]
    returned, seconds = _repeated(run, runs, budget_s)
    figures: dict[str, Any] = {"seconds": statistics.median(seconds), "all_seconds": seconds}
    return returned, figures | ({"first_s": warm[0]} if warm else {})


def _repeated(run: Callable[[], Any], most: int, budget_s: float) -> tuple[Any, list[float]]:
    returned: Any = None
    seconds: list[float] = []
    while len(seconds) < most and sum(seconds) < budget_s:
        begin = time.perf_counter()
        returned = run()
        seconds.append(time.perf_counter() - begin)
    return returned, seconds


def write(report: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(report, indent=1) + "\n"
    if out:
        out.write_text(text)
    else:
        print(text)
