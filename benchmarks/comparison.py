"""What programs share that hold our engine against another: each side in a process, whole runs timed.

found = each_side(__file__, {"vllm": flags}, out, packages, cut_off)   in turn: each has all memory
with turn(path, alone=True): ...        one of several comparisons on a machine
finish(result_file, found)              what a side's process does last, and may do before
write(report, out, found)
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from committed import written

# Nothing is fetched and nothing is told to anybody while a side runs. Host operations have few threads: with
# one for each core, a copy waits for whichever core is busy (8 ms for each of 32 images were seen). Every run
# is greedy: vLLM need not compile FlashInfer's samplers, which takes over a minute of its start.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "OMP_NUM_THREADS": "4",
}


def each_side(
    program: str,
    flags: Mapping[str, list[str]],
    out: Path | None,
    packages: Mapping[str, Path | None],
    cut_off: bool,
    together: bool = False,
) -> dict[str, dict[str, Any]]:
    """What `program --side NAME flags` finds, by NAME. packages: folders that imports of a side look into
    first. Beside `out` each side leaves a file until `write`; cut_off: nothing runs, those are read.
    together: the sides run beside one another, and take turns themselves.
    """
    if cut_off:
        return _cut_off(flags, out)

    def run(side: str) -> dict[str, Any]:
        kept = _left(out, side) if out else None
        return in_a_process(program, ["--side", side, *flags[side]], packages.get(side), kept)

    with ThreadPoolExecutor(len(flags) if together else 1) as threads:
        return dict(zip(flags, threads.map(run, flags), strict=True))


def _cut_off(sides: Iterable[str], out: Path | None) -> dict[str, dict[str, Any]]:
    if out is None:
        sys.exit("--cut-off needs the --out of the run that was cut off")
    left = {side: _left(out, side) for side in sides}
    if absent := [str(path) for path in left.values() if not path.is_file()]:
        sys.exit(f"a run that was cut off leaves a file of each side; missing: {', '.join(absent)}")
    return {side: json.loads(path.read_text()) for side, path in left.items()}


def _left(out: Path, side: str) -> Path:
    return out.with_suffix(f".{side}.json")


def in_a_process(
    program: str, arguments: list[str], packages: Path | None = None, kept: Path | None = None
) -> dict[str, Any]:
    """What `program arguments --result FILE` writes. packages: a folder that its imports look into first.
    kept: the file, if it stays.
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


@contextmanager
def turn(path: Path | None, *, alone: bool) -> Iterator[None]:
    """Among comparisons that run beside one another and share the file: what starts does so beside others
    that start, what is timed runs alone. No path: nothing is awaited."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def finish(result: Path, found: dict[str, Any]) -> None:
    part = result.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(result)  # whole, whenever the process is cut off


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


def write(report: dict[str, Any], out: Path | None, sides: Iterable[str] = ()) -> None:
    """sides: those of `each_side`, whose files are no longer needed."""
    text = written(report)
    if not out:
        print(text)
        return
    out.write_text(text)
    for side in sides:
        _left(out, side).unlink(missing_ok=True)
