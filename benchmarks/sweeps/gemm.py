"""Times of `linear` for more than 32 rows: cuBLAS, the fastest proposal of cuBLASLt, and our grouped product
for Hopper with one expert, which has every row. `unit`: of `linear_glu`, beside cuBLAS and a glu kernel.

Medians over replays of a CUDA graph, in microseconds; ratios are cuBLAS's time / another's.

python benchmarks/sweeps/gemm.py --out gemm.json
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import is_lost
from torch import Tensor
from triton.testing import do_bench_cudagraph

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.measure.environment import environment

# Outputs, inputs, gated unit.
SHAPES = (
    (6144, 4096, False),
    (4096, 4096, False),
    (28672, 4096, False),
    (4096, 14336, False),
    (28672, 4096, True),
)
ROWS = (64, 128, 256, 512, 1024, 2048, 8192)
LIMIT = 1e-2  # of the norm of cuBLAS's answer


def ways(x_TK: Tensor, weight_NK: Tensor, unit: bool) -> dict[str, Callable[[], Tensor]]:
    rows = len(x_TK)
    order = torch.arange(rows, device="cuda", dtype=torch.int32)
    starts = torch.tensor([0, rows], device="cuda", dtype=torch.int32)
    if unit:
        glued = (order, starts, "silu")
        return {
            "cublas": lambda: kernels.linear_glu(x_TK, weight_NK, None, "silu", impl="parts"),
            "grouped": lambda: kernels.grouped_linear_glu(x_TK, weight_NK[None], *glued, impl="hopper"),
        }
    return {
        "cublas": lambda: kernels.linear(x_TK, weight_NK, impl="cublas"),
        "cublaslt_best": lambda: kernels.linear(x_TK, weight_NK, impl="cublaslt_best"),
        "grouped": lambda: kernels.grouped_linear(x_TK, weight_NK[None], order, starts, impl="hopper"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for outputs, inputs, unit in SHAPES:
        weight_NK = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
        for rows in ROWS:
            x_TK = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            line: dict[str, Any] = {"rows": rows, "outputs": outputs, "inputs": inputs, "unit": unit}
            calls = ways(x_TK, weight_NK, unit)
            expected = calls["cublas"]().float()
            for name, call in calls.items():
                try:
                    off = ((call().float() - expected).norm() / expected.norm()).item()
                    us: Any = do_bench_cudagraph(call, rep=20, return_mode="median")
                    line |= {name: us * 1e3, f"{name}_ratio": line.get("cublas", us * 1e3) / us / 1e3}
                    if not off < LIMIT:
                        line[f"{name}_wrong"] = off
                except (RuntimeError, KernelError) as error:
                    if is_lost(error):
                        raise
                    line[f"{name}_failed"] = str(error)[:200]
            lines.append(line)
            print({key: round(x, 3) if isinstance(x, float) else x for key, x in line.items()}, flush=True)
            report = {"environment": environment("cuda").model_dump(mode="json"), "lines": lines}
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    for name in ("cublaslt_best", "grouped"):
        ratios = [line[f"{name}_ratio"] for line in lines if f"{name}_ratio" in line]
        print(name, math.exp(sum(map(math.log, ratios)) / max(1, len(ratios))), len(ratios))


if __name__ == "__main__":
    main()
