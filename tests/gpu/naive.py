"""The naive judge of tests/e2e/naive.py for a CUDA device, with what such judges do there.

    python -m tests.gpu.naive FOLDER ...        one line of JSON for each: {"name", "passed", "speedup"}

The baseline is timed first, then the candidate is imported and timed alone. Events of torch's on the current
stream are the clock, looked up when they are needed. Inputs never change. The first call is compared, after
all streams have ended; the L2 cache is overwritten before each call, and what was pinned there stays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

import torch

from tests.e2e.naive import CALLS, WARM_UPS, close, imported, outcome

ROWS, HIDDEN = 512, 4096
TIMEOUT_S = 120  # a context, and a compiler with an empty cache
_FLUSH_BYTES = 256 << 20  # more than any L2 cache


def judge(folder: Path) -> dict:
    """In a process of its own."""
    from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline

    torch.manual_seed(0)
    x_TD = torch.randn(ROWS, HIDDEN, device="cuda", dtype=torch.bfloat16)
    weight_D = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16) + 0.5
    with torch.inference_mode():
        baseline = _ready(Baseline, weight_D)
        expected = baseline(x_TD).clone()
        baseline_ms = _typical_ms(baseline, x_TD)
        candidate = _ready(imported(folder), weight_D)
        result = candidate(x_TD)
        torch.cuda.synchronize()
        passed = close(result.float(), expected.float())
        return {"passed": passed, "speedup": baseline_ms / max(_typical_ms(candidate, x_TD), 1e-6)}


def _ready(cls: type, weight_D: torch.Tensor):
    with torch.device("cuda"):
        module = cls(HIDDEN).to(torch.bfloat16)
    module.weight.data.copy_(weight_D)
    return module


def _typical_ms(module, x_TD: torch.Tensor) -> float:
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    durations = []
    for _ in range(WARM_UPS + CALLS):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        module(x_TD)
        end.record()
        torch.cuda.synchronize()
        end.synchronize()
        durations.append(begin.elapsed_time(end))
    return median(durations[WARM_UPS:])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        found = {"name": Path(argument).name, **outcome(Path(argument), judge, TIMEOUT_S)}
        print(json.dumps(found), flush=True)
