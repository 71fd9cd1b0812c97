"""Our fused experts beside vLLM's: two grouped products, the gated unit, the sum of a token's experts.

python benchmarks/experts_vs_vllm.py --out experts_vs_vllm.json [--vllm-path ~/site-vllm] [--seconds 120]
python benchmarks/experts_vs_vllm.py --out variants.json --variants [triton] --seconds 200

    ratio = vLLM's time / ours          share = the least time by bytes and operations / ours

ours: as L2/fused_experts runs it; beside it, by one implementation for both products. vLLM's: fused_experts
with the tile shapes that it has for this device, where it can be imported. Both take the chosen experts and
their weights. Times are medians over replays of a CUDA graph. A row's errors are the largest of a row of the
answer, by its norm, beside float64 (some tokens); more than MOST_ERROR is wrong. Routing: `uniform`, each
expert as likely as another; `skewed`, the r-th as 1 / r^1.2.
`--variants` times other tiles of ours instead, of both implementations or of those named; with `--watchdog`
a kernel of ours in CUDA C++ that waits for long says for what, and ends. The report is written
after each case.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from in_child import Report, run, say, us

TOKENS = (1, 32, 1024, 8, 128, 4096)
MOST_ERROR = 0.01
CHECKED = 48  # tokens
IMPLEMENTATIONS = ("hopper", "triton")


class Model(NamedTuple):
    experts: int
    top_k: int
    hidden: int
    inner: int


MODELS = {"mixtral": Model(8, 2, 4096, 14336), "qwen3_vl_moe": Model(128, 8, 4096, 1536)}
# Tiles of `hopper`: slots, panels, stages, split, ahead; of `triton`: m, n, k, together, warps, stages. Tried
# where a tile has from a fourth to eight times the slots of an expert.
VARIANTS = {
    "hopper": (
        (16, 2, 6, True, 0), (16, 2, 6, False, 0), (16, 1, 12, True, 0), (16, 2, 6, True, 4),
        (32, 2, 5, True, 0), (32, 2, 5, False, 0), (64, 2, 4, True, 0), (64, 1, 9, True, 0),
        (64, 1, 9, False, 8), (128, 1, 6, False, 0), (128, 1, 6, False, 8), (192, 1, 5, False, 8),
        (256, 1, 4, False, 0), (256, 1, 4, False, 4), (256, 1, 4, False, 8), (288, 1, 4, False, 0),
        (288, 1, 4, False, 8), (288, 1, 4, False, 16),
    ),
    "triton": (
        (16, 128, 128, 1, 4, 5), (16, 128, 128, 2, 4, 5), (16, 128, 128, 8, 4, 5), (16, 128, 128, 16, 4, 5),
        (32, 128, 128, 1, 4, 4), (32, 128, 128, 8, 4, 4), (64, 128, 64, 4, 4, 4), (64, 128, 64, 8, 4, 4),
    ),
}  # fmt: skip


# --- in the child ---


@cache
def stacks(name: str) -> tuple[Any, Any]:
    """Weights of both products."""
    import torch

    model = MODELS[name]
    return tuple(
        torch.empty(model.experts, rows, inputs, device="cuda", dtype=torch.bfloat16).normal_(
            std=inputs**-0.5
        )
        for rows, inputs in ((2 * model.inner, model.hidden), (model.hidden, model.inner))
    )  # pyright: ignore[reportReturnType]


def routed(model: Model, tokens: int, routing: str) -> tuple[Any, Any]:
    """Weights [T, k] float32 and ids [T, k] int32, distinct experts of each token."""
    import torch

    ranks = torch.arange(1, model.experts + 1, device="cuda", dtype=torch.float32)
    logits = (-1.2 * ranks.log() if routing == "skewed" else 0 * ranks).expand(tokens, -1)
    drawn = logits - torch.empty_like(logits).exponential_().log()
    ids = drawn.topk(model.top_k).indices
    return torch.rand(tokens, model.top_k, device="cuda").softmax(-1), ids.int()


def error(y: Any, x: Any, first: Any, second: Any, weights: Any, ids: Any) -> float:
    """Of tokens from all over the batch: the largest error of a row, by its norm."""
    import torch

    some = torch.unique(torch.linspace(0, len(x) - 1, min(CHECKED, len(x)), device="cuda").long())
    answer = torch.zeros(len(some), x.shape[1], dtype=torch.float64, device="cuda")
    for expert in ids[some].unique().tolist():
        token, nth = (ids[some] == expert).nonzero(as_tuple=True)
        gate, up = (x[some[token]].double() @ first[expert].double().T).chunk(2, dim=1)
        out = (torch.nn.functional.silu(gate) * up) @ second[expert].double().T
        answer.index_add_(0, token, out * weights[some[token], nth].double()[:, None])
    return ((y[some].double() - answer).norm(dim=1) / answer.norm(dim=1)).max().item()


def vllms() -> Callable | None:
    try:
        from vllm.model_executor.layers.fused_moe.fused_moe import (  # pyright: ignore[reportMissingImports]
            fused_experts,
        )
    except Exception as why:
        say(note=f"no fused experts of vLLM: {why!r}"[:300])
        return None
    return fused_experts


def ours(impl: str | None, x: Any, first: Any, second: Any, weights: Any, ids: Any) -> Any:
    from fastkernels import kernels

    aligned = kernels.moe_align(ids, len(first))
    active = kernels.grouped_linear_glu(x, first, *aligned, "silu", impl=impl)
    y = kernels.grouped_linear(active, second, *aligned, weights.flatten(), impl=impl)
    return kernels.moe_sum(y.view(*ids.shape, -1))


def of_case(job: list, variants: str, theirs: Callable | None) -> dict:
    import torch

    from fastkernels import kernels
    from fastkernels.measure.ceilings import ceilings

    name, tokens, routing = job
    model = MODELS[name]
    first, second = stacks(name)
    torch.manual_seed(tokens)
    weights, ids = routed(model, tokens, routing)
    x = torch.randn(tokens, model.hidden, device="cuda", dtype=torch.bfloat16)
    given = (x, first, second, weights, ids)
    rows = ids.flatten().bincount(minlength=model.experts)
    each = 3 * model.hidden * model.inner
    moved = 2 * (int((rows > 0).sum()) * each + 2 * tokens * model.hidden)
    limits = ceilings("cuda")
    product_s = 2 * ids.numel() * each / (limits.flops_s("bfloat16") or math.inf)
    least_us = 1e6 * max(moved / limits.read_bytes_s(moved), product_s)
    row: dict[str, Any] = {
        "case": f"{name} {tokens} {routing}", "experts": int((rows > 0).sum()), "most_rows": int(rows.max()),
        "least_us": least_us,
    }  # fmt: skip

    def add(what: str, call: Callable[[], Any]) -> None:
        say(note=f"{row['case']}: {what}")
        try:
            row[f"{what}_error"] = error(call(), *given)
            row[f"{what}_us"] = us(call)
            if not row[f"{what}_error"] <= MOST_ERROR:
                row.setdefault("wrong", []).append(what)
        except Exception as why:
            row[f"{what}_failed"] = repr(why)[:400]
            torch.cuda.synchronize()  # raises where the context is lost

    if variants:
        row["variants"] = of_variants(variants, given, tokens * model.top_k / model.experts)
        return row
    add("ours", lambda: ours(None, *given))
    for impl in IMPLEMENTATIONS:
        add(impl, lambda impl=impl: ours(impl, *given))
    if theirs is not None:
        library = theirs
        add("vllm", lambda: library(x, first, second, weights, ids))
        if "vllm_us" in row and "ours_us" in row:
            row["ratio"] = row["vllm_us"] / row["ours_us"]
            row |= {
                f"{i}_ratio": row["vllm_us"] / row[f"{i}_us"] for i in IMPLEMENTATIONS if f"{i}_us" in row
            }
    if "ours_us" in row:
        row["share"] = least_us / row["ours_us"]
    aligned = kernels.moe_align(ids, model.experts)
    active = kernels.grouped_linear_glu(x, first, *aligned, "silu", impl="triton")
    for impl in IMPLEMENTATIONS:
        if f"{impl}_us" in row:
            row[f"{impl}_parts_us"] = [
                us(lambda impl=impl: kernels.grouped_linear_glu(x, first, *aligned, "silu", impl=impl)),
                us(
                    lambda impl=impl: kernels.grouped_linear(
                        active, second, *aligned, weights.flatten(), impl=impl
                    )
                ),
            ]
    row["align_us"] = us(lambda: kernels.moe_align(ids, model.experts))
    return row


def of_variants(impls: str, given: tuple, average: float) -> dict[str, Any]:
    """Microseconds of the first and of the second product, by implementation and tile."""
    from contextlib import ExitStack

    from fastkernels import kernels
    from fastkernels.kernels import grouped_linear_glu_triton as glu_triton
    from fastkernels.kernels import grouped_linear_hopper as hopper
    from fastkernels.kernels import grouped_linear_triton as triton

    x, first, second, weights, ids = given
    order, starts = kernels.moe_align(ids, len(first))
    active = kernels.grouped_linear_glu(x, first, order, starts, "silu", impl="triton")

    def calls(impl: str) -> tuple[Callable[[], Any], ...]:
        return (
            lambda: kernels.grouped_linear_glu(x, first, order, starts, "silu", impl=impl),
            lambda: kernels.grouped_linear(active, second, order, starts, weights.flatten(), impl=impl),
        )

    expected = [call().float() for call in calls("triton")]
    found: dict[str, Any] = {}
    for impl, variant in ((name, one) for name in impls.split(",") for one in VARIANTS[name]):
        if not max(16, average / 4) <= variant[0] <= max(64, 8 * average):
            continue
        key = f"{impl} {' '.join(str(int(part)) for part in variant)}"
        say(note=key)
        with ExitStack() as stack:
            for module in (hopper,) if impl == "hopper" else (triton, glu_triton):
                tile = module.Tile(*variant) if module is not glu_triton else triton.Tile(*variant)
                stack.enter_context(mock.patch.object(module, "tile_for", return_value=tile))
            try:
                off = [
                    ((call().float() - one).norm() / one.norm()).item()
                    for call, one in zip(calls(impl), expected, strict=True)
                ]
                found[key] = [us(call) for call in calls(impl)] if max(off) < MOST_ERROR else f"off by {off}"
            except Exception as why:
                found[key] = repr(why)[:200]
    return found


def child(jobs: list[list], variants: str, watchdog: bool) -> None:
    import torch

    from fastkernels.kernels import grouped_linear_hopper as hopper
    from fastkernels.measure.environment import environment

    if watchdog:
        constants = hopper.constants
        hopper.constants = lambda *args: constants(*args) | {"WATCHDOG": 1}
    theirs = None if variants else vllms()
    say(environment=environment("cuda").model_dump(mode="json"))
    for job in jobs:
        began = time.perf_counter()
        try:
            with torch.inference_mode():
                outcome = of_case(job, variants, theirs)
        except Exception as why:
            outcome = {"failed": repr(why)[:1500]}
        say(job=job, seconds=round(time.perf_counter() - began, 2), **outcome)
        if "failed" in outcome:
            torch.cuda.synchronize()  # raises where the context is lost: nothing more could run here


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("experts_vs_vllm.json"))
    parser.add_argument("--vllm-path", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--variants", nargs="?", const=",".join(VARIANTS), default="")
    parser.add_argument("--models", default=",".join(MODELS), help="commas between them")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="commas between them")
    parser.add_argument("--watchdog", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(json.loads(arguments.child), arguments.variants, arguments.watchdog)
        return
    jobs = [
        [model, int(tokens), routing]
        for model in arguments.models.split(",")
        for tokens in arguments.tokens.split(",")
        for routing in ("uniform", "skewed")
    ]
    report = Report(arguments.out, "experts_vs_vllm")
    options = [f"--variants={arguments.variants}", *(["--watchdog"] if arguments.watchdog else [])]
    run(__file__, jobs, options, arguments.seconds, arguments.vllm_path, report)
    for row in report.rows:
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
        timed = {tile: us for tile, us in row.get("variants", {}).items() if isinstance(us, list)}
        for which in (0, 1):
            best = sorted(timed, key=lambda tile, timed=timed, which=which: timed[tile][which])
            print(f"    product {which}:", *(f"{tile}: {timed[tile][which]:.1f} us;" for tile in best[:4]))
    print(f"geomean {report.geomean}")
    sys.exit(1 if any(row.get("wrong") for row in report.rows) else 0)


if __name__ == "__main__":
    main()
