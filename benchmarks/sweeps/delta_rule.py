"""Times of the delta rule at the sizes of Qwen3-Next (a gate for each head) and Kimi Linear (one for each
channel of the key): our kernels beside flash-linear-attention's.

python benchmarks/sweeps/delta_rule.py --out benchmarks/h200/delta_rule.json --seconds 60

    ratio = fla's time / ours        share = bytes of the states, read and written once / (time x bandwidth)

Prompts are calls of both, because the library finds its chunks on the host and no graph can hold that; single
tokens are replays of a CUDA graph (states of fewer than 32 rows stay in the cache: their share says nothing).
Only answers within 1.5e-2 of the reference count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from timing import is_lost, median_us

from fastkernels import kernels
from fastkernels.measure.ceilings import ceilings
from fastkernels.measure.environment import environment

KINDS = {"qwen3_next": (32, 16, 128, 128, False), "kimi_linear": (32, 32, 128, 128, True)}
PROMPTS, ROWS = ((8, 2048), (1, 4096), (32, 512)), (1, 32, 128)
LIMIT, REPLAYS, WARM_UPS = 1.5e-2, 20, 3


def inputs(kind: str, rows: int, tokens: int) -> list[Any]:
    heads, key_heads, key_dim, value_dim, by_channel = KINDS[kind]
    of: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    gates = (heads, key_dim) if by_channel else (heads,)
    shapes = [(key_heads, key_dim)] * 2 + [(heads, value_dim), gates, (heads,)]
    drawn = [torch.randn(rows * tokens, *shape, **of) for shape in shapes]
    bias = torch.randn(*gates, **of) - 2
    state = torch.randn(rows + 1, heads, key_dim, value_dim, device="cuda")
    a_log = torch.rand(heads, device="cuda") * 3 - 1
    return [*drawn, a_log, bias, key_dim**-0.5, state, torch.arange(rows, device="cuda") + 1]


def compared(kind: str, rows: int, tokens: int) -> dict[str, Any]:
    is_prompt = tokens > 1
    name = "chunk_delta_rule" if is_prompt else "recurrent_delta_rule"
    args = inputs(kind, rows, tokens)
    begun = args[8]
    if is_prompt:
        args += [torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32, device="cuda"), tokens]
    row: dict[str, Any] = {"kernel": name, "sizes": kind, "rows": rows, "tokens": tokens}
    args[8] = begun.clone()
    expected = kernels.registered[name](*args, impl="torch" if is_prompt else "reference").float(), args[8]
    for impl in ("triton", "fla"):
        args[8] = begun.clone()

        def call(impl: str = impl) -> None:
            kernels.registered[name](*args, impl=impl)

        answer = kernels.registered[name](*args, impl=impl).float(), args[8].clone()
        error = max(((a - e)[-1].norm() / e[-1].norm()).item() for a, e in zip(answer, expected, strict=True))
        row[f"{impl}_error"] = error
        if not error <= LIMIT:
            continue
        if is_prompt:
            row[f"{impl}_us"] = median_us(call, REPLAYS, WARM_UPS)
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            row[f"{impl}_us"] = median_us(graph.replay, REPLAYS, WARM_UPS)
    if "triton_us" in row and "fla_us" in row:
        row["ratio"] = row["fla_us"] / row["triton_us"]
    if not is_prompt and "triton_us" in row:
        moved = 2 * begun[1:].nbytes
        row["share"] = moved / (row["triton_us"] * 1e-6 * ceilings("cuda").copy_bytes_s(moved))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    chosen, begin = parser.parse_args(), time.monotonic()
    rows: list[dict[str, Any]] = []
    jobs = [(kind, *prompt) for prompt in PROMPTS for kind in KINDS]
    jobs = [(kind, count, 1) for count in ROWS for kind in KINDS] + jobs
    for job in jobs:
        if time.monotonic() - begin > chosen.seconds:
            sys.exit(f"the time is over before {job}")
        try:
            rows.append(compared(*job))
        except Exception as why:
            rows.append({"job": job, "failed": f"{type(why).__name__}: {str(why)[:300]}"})
            if is_lost(why):
                raise
        print(json.dumps(rows[-1]), flush=True)
        if chosen.out:
            found = {"rows": rows, "environment": environment("cuda").model_dump(mode="json")}
            chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
