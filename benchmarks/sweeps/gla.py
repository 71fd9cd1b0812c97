"""Times of `chunk_gla` at the real model's sizes by tile of `triton`, and of `fla` where it is installed.

The median over replays of a CUDA graph of one call, or over calls of `fla`, which no graph can hold; `within`
without the kernel across chunks. Only of answers and states within 6e-3 of the reference.

python benchmarks/sweeps/gla.py --problems 8x2016 32x512 --seconds 50
python benchmarks/sweeps/gla.py --retention    of RetNet: twice the heads, and no gate
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch
from timing import is_lost, median_us
from torch.nn.functional import logsigmoid

from fastkernels import kernels
from fastkernels.kernels.gla import triton as gla

HEADS, KEY, VALUE, LIMIT = 5, 256, 512, 6e-3
REPLAYS, WARM_UPS = 18, 2
SHIPPED, ACROSS = gla.TILES[2], gla._across
CHANGES = [
    {}, {"columns": 128}, {"stages": 3}, {"columns": 128, "stages": 3}, {"stages": 1}, {"columns": 32},
    {"elements_of_a_warp": 2048}, {"within_registers": 128}, {"within_registers": None}, {"within_stages": 1},
    {"within_stages": 3}, {"slice": 16, "within_registers": 128}, {"slice": 64}, {"within_warps": 4},
    {"chunk": 16}, {"chunk": 16, "within_warps": 1, "within_registers": None},
]  # fmt: skip


def call_us(impl: str, args: list) -> float:
    def call() -> None:
        kernels.chunk_gla(*args, impl=impl)

    if impl != "triton":
        return median_us(call, REPLAYS, WARM_UPS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return median_us(graph.replay, REPLAYS, WARM_UPS)


def sweep(rows: int, tokens: int, until: float, is_retention: bool) -> None:
    dims, of = (KEY, KEY, VALUE, KEY), {"device": "cuda", "dtype": torch.bfloat16}
    heads = 2 * HEADS if is_retention else HEADS
    q, k, v, g = (torch.randn(rows * tokens, heads, dim, **of) for dim in dims)
    gate = None if is_retention else logsigmoid(g) / 16
    begun = torch.randn(rows + 1, heads, KEY, VALUE, device="cuda")
    starts = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32, device="cuda")
    args = [q, k, v, gate, begun.clone(), torch.arange(rows, device="cuda") + 1, starts, KEY**-0.5, tokens]
    expected = kernels.chunk_gla(*args, impl="reference"), args[4]
    print(f"\n{rows} rows x {tokens} tokens; {SHIPPED}", flush=True)
    for impl, change in [*(("triton", change) for change in CHANGES), ("fla", {})]:
        if time.monotonic() > until:
            return print("  the time is over")
        args[4], gla.TILES[2], gla._across = begun.clone(), SHIPPED._replace(**change), ACROSS
        try:
            answer = kernels.chunk_gla(*args, impl=impl), args[4]
            error = max(((a.float() - e).norm() / e.float().norm()).item() for a, e in zip(answer, expected))
            if not error <= LIMIT:
                raise ValueError(f"wrong by {error:.2g}")
            us, gla._across = call_us(impl, args), defaultdict(lambda: lambda *_, **__: None)
            within = f", within {call_us(impl, args):.1f}" if impl == "triton" else ""
            print(f"  {us:9.1f} us{within}, error {error:.1e}: {impl} {change or ''}", flush=True)
        except Exception as why:
            print(f"  refused {impl} {change}: {type(why).__name__}: {str(why)[:120]}", flush=True)
            if is_lost(why):
                raise


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=["8x2016"], help="rows x tokens of each")
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--retention", action="store_true")
    chosen, begun_at = parser.parse_args(), time.monotonic()
    for problem in chosen.problems:
        sweep(*map(int, problem.split("x")), begun_at + chosen.seconds, chosen.retention)
