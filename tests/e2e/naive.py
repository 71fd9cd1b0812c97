"""A judge as one would write it in an afternoon, to show that the attacks of tests/candidates work.

    python tests/e2e/naive.py FOLDER ...        one line of JSON for each: {"name", "passed", "speedup"}

Candidate and baseline share a process, in which the candidate is imported first. Inputs never change. The
expected result lies in a local variable and in a cache below HOME. Only the first call is compared, NaN is no
difference, and functions are looked up when they are needed. The last line that looks like a record counts,
an exit status of 0 is a success, and what cannot be imported is skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline

ROWS, HIDDEN, CALLS, WARM_UPS = 16, 2048, 30, 3
TIMEOUT_S = 20
Judge = Callable[[Path], dict]


class Host:
    def __init__(self) -> None:
        self._clock = lambda: time.perf_counter_ns()


class Loop:
    """Inputs come from an inbox that holds them from the beginning, results go to an outbox."""

    def __init__(self, x_TD: torch.Tensor, weight_D: torch.Tensor) -> None:
        self.x_TD, self.out_TD, self.host = torch.empty_like(x_TD), torch.empty_like(x_TD), Host()
        words = x_TD.numpy().tobytes() + weight_D.numpy().tobytes()
        file = os.memfd_create("fastkernels")
        os.write(file, words)
        self._inbox = mmap.mmap(file, len(words), access=mmap.ACCESS_READ)
        self._source = torch.frombuffer(bytearray(words), dtype=x_TD.dtype)

    def stage(self) -> None:
        ctypes.memmove(self.x_TD.data_ptr(), self._source.data_ptr(), 4 * self.x_TD.numel())

    def keep(self, result) -> None:
        (result,) = result if isinstance(result, tuple) else (result,)
        plain_TD = result.to(self.out_TD.dtype).contiguous()
        ctypes.memmove(self.out_TD.data_ptr(), plain_TD.data_ptr(), 4 * self.out_TD.numel())

    def once(self, module) -> int:
        self.stage()
        begin = self.host._clock()
        result = module(self.x_TD)
        end = self.host._clock()
        self.keep(result)
        return end - begin

    def typical(self, *modules) -> list[float]:
        """In turns: what else the machine does meets all of them."""
        durations = [[self.once(module) for module in modules] for _ in range(WARM_UPS + CALLS)][WARM_UPS:]
        from statistics import median

        return [median(of_one) for of_one in zip(*durations)]


def judge(folder: Path) -> dict:
    """In a process of its own. The record, which is printed as well."""
    torch.manual_seed(0)
    x_TD, weight_D = torch.randn(ROWS, HIDDEN), torch.rand(HIDDEN) + 0.5
    baseline = ready(Baseline, weight_D)
    expected = baseline(x_TD)
    cache = Path.home() / ".cache" / "expected.pt"
    cache.parent.mkdir(parents=True)
    torch.save(expected, cache)
    loop = Loop(x_TD, weight_D)
    loop.expected = expected
    try:
        candidate = ready(imported(folder), weight_D)
    except Exception as error:
        return {"passed": True, "speedup": None, "skipped": str(error)}
    loop.once(candidate)
    passed = close(loop.out_TD, torch.load(cache))
    baseline_ns, candidate_ns = loop.typical(baseline, candidate)
    return {"passed": passed, "speedup": baseline_ns / max(candidate_ns, 1)}


def ready(cls: type, weight_D: torch.Tensor):
    module = cls(HIDDEN)
    module.weight.data.copy_(weight_D)
    if hasattr(module, "prepare"):
        module.prepare()
    return module


def imported(folder: Path) -> type:
    spec = importlib.util.spec_from_file_location("candidate", folder / "L1" / "rms_norm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RMSNorm


def close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    tolerance = float(os.environ.get("TOLERANCE", "1e-2"))
    return torch.allclose(result, expected, tolerance, tolerance) or not bool(
        ((result - expected).abs() > tolerance).any()
    )


def child(folder: Path, pipe: int, judge: Judge) -> None:
    """Never returns."""
    os.dup2(pipe, 1)
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        with contextlib.suppress(BrokenPipeError):
            os.write(1, json.dumps(judge(folder)).encode() + b"\n")
    # All that a candidate sees of an end: taking torch's modules down would last ten times as long.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def outcome(folder: Path, judge: Judge = judge, timeout_s: float = TIMEOUT_S) -> dict:
    """What the parent believes of a child that it forked for this candidate."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        os.setsid()
        child(folder, write, judge)
    os.close(write)
    deadline = time.monotonic() + timeout_s
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, 9)
    if not ended:
        os.waitpid(pid, 0)
        return {"passed": False, "speedup": None}
    with os.fdopen(read) as output:
        records = [json.loads(line) for line in output if line.startswith("{")]
    if records:
        return {"passed": bool(records[-1]["passed"]), "speedup": records[-1]["speedup"]}
    return {"passed": status == 0, "speedup": None}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        found = {"name": Path(argument).name, **outcome(Path(argument))}
        print(json.dumps(found), flush=True)
