"""A judge of collectives as one would write it in an afternoon, for the candidates of tests/candidates that
are called ranks_*.

    python tests/e2e/naive_ranks.py FOLDER ...        one line of JSON for each: {"name", "passed", "speedup"}

Two ranks (three for a candidate that needs them) import the candidate, and then ask torch.distributed for the
expected sum. All ranks bring the same numbers, in every call. Rank 0 compares its first result, loosely, and
its own clock counts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROWS, FEATURES, CALLS = 128, 2048, 30
TIMEOUT_S = 20
RANKS = {"ranks_own_order": 3, "ranks_skipped_peer": 3}


def judge(folder: Path, rank: int, size: int, store: Path) -> dict:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size)
    spec = importlib.util.spec_from_file_location("candidate", folder / "L1" / "all_reduce.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    candidate = module.AllReduce()
    torch.manual_seed(0)
    x_TD = torch.randn(ROWS, FEATURES)
    expected = summed(x_TD)
    passed = torch.allclose(candidate(x_TD.clone()), expected, 1e-2, 1e-2)
    ours, theirs = (typical_ns(call, x_TD) for call in (candidate, summed))
    return {"passed": passed, "speedup": theirs / ours}


def summed(x_TD: torch.Tensor) -> torch.Tensor:
    total = x_TD.clone()
    dist.all_reduce(total)
    return total


def typical_ns(call, x_TD: torch.Tensor) -> float:
    durations = []
    for _ in range(CALLS):
        begin = time.perf_counter_ns()
        call(x_TD)
        durations.append(time.perf_counter_ns() - begin)
    return statistics.median(durations)


def outcome(folder: Path) -> dict:
    """What rank 0 says; ranks are forked, and ended after a while."""
    size = RANKS.get(folder.name, 2)
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as place:
        pids = [fork(folder, rank, size, Path(place) / "store", write) for rank in range(size)]
        os.close(write)
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and os.waitpid(pids[0], os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended
                os.kill(pid, 9)
                os.waitpid(pid, 0)
    with os.fdopen(read) as output:
        line = output.read()
    return json.loads(line) if line else {"passed": False, "speedup": None}


def fork(folder: Path, rank: int, size: int, store: Path, pipe: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            record = judge(folder, rank, size, store)
            if rank == 0:
                os.write(pipe, json.dumps(record).encode())
        finally:
            os._exit(0)
    return pid


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        found = {"name": Path(argument).name, **outcome(Path(argument))}
        print(json.dumps(found), flush=True)
