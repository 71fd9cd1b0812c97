"""Our Hopper attention beside FlashAttention-3 and our other implementations, at shapes of registered models.

python benchmarks/attention_vs_fa3.py --out attention_vs_fa3.json [--vllm-path ~/site-vllm] [--seconds 90]
python benchmarks/attention_vs_fa3.py --out variants.json --variants --no-checks --seconds 120

    ratio = FlashAttention-3's time / ours

Checks compare with the formula in float64, over caches whose unseen slots are NaN. Times are medians over
replays of a CUDA graph; FlashAttention-3 is that of vllm.vllm_flash_attn, where it can be imported.
`--vllm-path` is the folder with vLLM's packages, where it is not installed beside ours.
`--variants` times other tile shapes, too. Two checks come first, then the times of Llama's shapes, the other
checks, the other times. All run in a child process: a kernel that hangs or faults costs one job. The report
is written after each job, so that what was finished stays where the run is cut off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from in_child import Report, run, say, us

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
BLOCK = 16
# (query heads, key/value heads, head dimension, sliding window or 0) of registered models.
LLAMA, MIXTRAL, QWEN2_VL = (32, 8, 128, 0), (32, 8, 128, 4096), (28, 4, 128, 0)
GPT_OSS, GPT_OSS_WINDOW, GEMMA = (64, 8, 64, 0), (64, 8, 64, 128), (16, 8, 256, 1024)
QWEN3_NEXT, WHISPER = (16, 2, 256, 0), (20, 20, 64, 0)
# Rows of so many keys, of which the last so many are queries (prefill; all of them where it is left out).
FIRST = [
    *(("prefill", *LLAMA, *batch) for batch in ((8, 1024), (16, 512), (1, 4096), (64, 128), (1, 512))),
    ("decode", *LLAMA, 1, 8192),
]
THEN = [
    *(("prefill", *LLAMA, 1, *lengths) for lengths in ((4801, 162), (1009, 239), (4096, 1920))),
    *(
        ("decode", *LLAMA, *batch)
        for batch in ((1, 1024), (8, 1024), (32, 1024), (4, 8192), (128, 1024), (256, 768))
    ),
    ("prefill", *GPT_OSS, 4, 2048),
    ("prefill", *GPT_OSS_WINDOW, 4, 2048),
    ("prefill", *GEMMA, 4, 2048),
    ("prefill", *QWEN3_NEXT, 4, 2048),
    ("prefill", *QWEN2_VL, 4, 2048),
    ("prefill", *MIXTRAL, 1, 8192),
    ("prefill", *WHISPER, 16, 4),
    ("decode", *GPT_OSS, 1, 8192),
    ("decode", *GEMMA, 1, 8192),
    ("decode", *QWEN3_NEXT, 1, 8192),
    *(("decode", *QWEN3_NEXT, *batch) for batch in ((1, 1024), (4, 8192), (16, 1024), (32, 1024))),
    ("decode", *QWEN2_VL, 32, 1024),
]
BIG = {"heads": (8, 2), "head_dim": 128}
FIFTY = [7 * n % 41 for n in range(50)]
CHECKS: dict[str, dict[str, dict[str, Any]]] = {
    "prefill": {
        "one-row": {"query_lens": [300], "seq_lens": [300], **BIG},
        "many-rows": {"query_lens": [5, 1, 133, 16], "seq_lens": [5, 1, 133, 16], **BIG},
        "chunked": {"query_lens": [50, 1, 133], "seq_lens": [1000, 640, 400], **BIG},
        "few-of-many": {"query_lens": [20, 162], "seq_lens": [5000, 3000], **BIG},
        "few-of-many-sinks": {
            "query_lens": [20, 70], "seq_lens": [2000, 3000], "sinks": True, "window": 900, **BIG
        },
        "rows-without-queries": {"query_lens": [0, 7, 0, 130, 0], "seq_lens": [9, 7, 0, 200, 4], **BIG},
        "fifty-rows": {"query_lens": FIFTY, "seq_lens": [n + i for i, n in enumerate(FIFTY)], **BIG},
        "window": {"query_lens": [300, 3, 90], "seq_lens": [300, 800, 1300], "window": 133, **BIG},
        "window-of-one": {"query_lens": [200, 3], "seq_lens": [200, 18], "window": 1, **BIG},
        "blocks-of-256": {"query_lens": [9, 140], "seq_lens": [9, 600], "block_size": 256, **BIG},
        "blocks-of-8": {"query_lens": [9, 140], "seq_lens": [9, 300], "block_size": 8, **BIG},
        "no-groups": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (3, 3), "head_dim": 128},
        "groups-of-7": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (14, 2), "head_dim": 128},
        "head-dim-64": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 2), "head_dim": 64},
        "head-dim-80": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 2), "head_dim": 80},
        "head-dim-192": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 2), "head_dim": 192},
        "head-dim-256": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 4), "head_dim": 256},
        "sinks-window": {
            "query_lens": [300, 90], "seq_lens": [300, 1300], "window": 128, "sinks": True, **BIG
        },
        "long": {"query_lens": [700], "seq_lens": [1300], "heads": (4, 1), "head_dim": 128},
    },
    "decode": {
        "one-row": {"seq_lens": [1000], **BIG},
        "mixed": {"seq_lens": [1, 15, 16, 17, 300, 2049], **BIG},
        "padding-rows": {"seq_lens": [5, 0, 640, 0], **BIG},
        "many-rows": {"seq_lens": [7 * n % 97 + 1 for n in range(200)], "heads": (4, 2), "head_dim": 64},
        "window": {"seq_lens": [3, 400, 900, 2000], "window": 333, **BIG},
        "window-of-one": {"seq_lens": [1, 17, 40], "window": 1, **BIG},
        "blocks-of-256": {"seq_lens": [9, 300], "block_size": 256, **BIG},
        "no-groups": {"seq_lens": [21, 400], "heads": (3, 3), "head_dim": 128},
        "groups-of-16": {"seq_lens": [21, 400], "heads": (16, 1), "head_dim": 128},
        "head-dim-80": {"seq_lens": [21, 400], "heads": (8, 2), "head_dim": 80},
        "head-dim-256": {"seq_lens": [21, 400], "heads": (8, 4), "head_dim": 256},
        "clusters": {"seq_lens": [5000, 1, 0, 65, 700], "heads": (16, 2), "head_dim": 256},
        "sinks-window": {
            "seq_lens": [3, 0, 200, 3000], "heads": (16, 2), "head_dim": 64, "window": 128, "sinks": True
        },
        "long": {"seq_lens": [8192], **BIG},
    },
}  # fmt: skip
THOROUGH = ("one-row", "sinks-window")  # in float16 too, and without the half step
# By kind and head dimension: what is tried beside the shape that is chosen.
VARIANTS: dict[str, dict[int, dict[str, dict[str, Any]]]] = {
    "prefill": {
        64: {
            "two_groups": {"groups": 2},
            "together": {"ping_pong": False},
            "128x4": {"stages": 4},
        },
        128: {
            "128x3": {"stages": 3},
            "together": {"ping_pong": False},
            "waits": {"beside": False},
            "whole": {"half": False},
        },
        256: {"64": {"tile": 64}, "ping_pong": {"ping_pong": True}},
    },
    "decode": {
        64: {"cluster4": {"cluster": 4}},
        128: {
            "128x2": {"tile": 128, "stages": 2, "resident": 1},
            "64x6": {"stages": 6, "resident": 1},
            "cluster4": {"cluster": 4},
        },
        256: {
            "64x3": {"stages": 3},
            **{f"cluster{n}": {"cluster": n} for n in (1, 2, 8)},
        },
    },
}


# --- in the child: one line of JSON for each outcome ---


def check(kind: str, name: str) -> dict:
    import torch
    from tests.attention_case import ROUNDING, attention_case

    from fastkernels.kernels import registered
    from fastkernels.kernels.prefill_attention import hopper as prefill

    facts = dict(CHECKS[kind][name])
    facts.setdefault("query_lens", [1] * len(facts["seq_lens"]))
    errors: dict[str, float] = {}
    details: list[str] = []
    chosen = dict(prefill.SHAPES)
    ways = [("bfloat16", True), *([("float16", True), ("bfloat16", False)] if name in THOROUGH else [])]
    for dtype, half in ways:
        prefill.SHAPES |= {dims: shape._replace(half=half) for dims, shape in chosen.items()}
        case = attention_case(dtype=getattr(torch, dtype), device="cuda", **facts)
        given = case.decode_args if kind == "decode" else case.prefill_args
        for again in range(2):  # counters are left at zero
            out = registered[f"{kind}_attention"](*(0 if a is None else a for a in given), impl="hopper")
            torch.cuda.synchronize()
            error = case.error(out) / ROUNDING[out.dtype]
            errors[f"{dtype} {'half' if half else 'whole'} {again}"] = error
            if not error <= 1.0:
                details.append(detail(case, out))
    prefill.SHAPES |= chosen
    right = all(error <= 1.0 for error in errors.values())
    return {"check": f"{kind}/{name}", "right": right, "errors": errors, "details": details[:2]}


def detail(case: Any, out: Any) -> str:
    """Where an answer is wrong: tokens and heads, and the first wrong row's elements."""
    answer = case.answer_THK
    error_TH = (out.double() - answer).norm(dim=2) / answer.norm(dim=2).clamp_min(1e-9)
    bad_TH = ~(error_TH < 0.02)
    if not bad_TH.any():
        return "near everywhere"
    tokens, heads = bad_TH.any(1).nonzero().flatten().tolist(), bad_TH.any(0).nonzero().flatten().tolist()
    first = tuple(bad_TH.nonzero()[0].tolist())
    got, wanted = ([round(x, 3) for x in one[first][:8].tolist()] for one in (out, answer))
    return (
        f"{int(bad_TH.sum())} of {bad_TH.numel()}: tokens {tokens[:12]} .. {tokens[-1]}, heads {heads[:12]}; "
        f"at {first} got {got}, wanted {wanted}"
    )


def fa3() -> Callable | None:
    try:
        from vllm.vllm_flash_attn.flash_attn_interface import (  # pyright: ignore[reportMissingImports]
            flash_attn_varlen_func,
        )
    except Exception as error:
        say(note=f"no FlashAttention-3: {error!r}"[:300])
        return None
    return flash_attn_varlen_func


def calls(job: list, theirs: Callable | None) -> tuple[str, float, Callable[[str], Callable[[], Any]]]:
    """A case's name, its operations, and its call by an implementation, or by `fa3`."""
    import torch

    from fastkernels import kernels

    kind, heads, kv_heads, head_dim, window, rows, length, *rest = job
    queries = (rest[0] if rest else length) if kind == "prefill" else 1
    blocks, scale = -(-length // BLOCK), head_dim**-0.5
    shape = (rows * blocks + 8, BLOCK, kv_heads, head_dim)
    k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    tables = torch.randperm(rows * blocks, device="cuda").to(torch.int32).view(rows, blocks)
    q = torch.randn(rows * queries, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    starts = torch.arange(0, rows * queries + 1, queries, device="cuda", dtype=torch.int32)
    lens = torch.full((rows,), length, device="cuda", dtype=torch.int32)
    sees = window or None

    def by(impl: str) -> Callable[[], Any]:
        if impl == "fa3" and (library := theirs) is not None:
            return lambda: library(
                q, k, v, queries, starts, length, seqused_k=lens, softmax_scale=scale, causal=True,
                block_table=tables, fa_version=3, window_size=[window - 1, 0] if window else [-1, -1],
            )  # fmt: skip
        if kind == "decode":
            return lambda: kernels.decode_attention(q, k, v, lens, tables, scale, sees, length, impl=impl)
        return lambda: kernels.prefill_attention(
            q, k, v, starts, lens, tables, scale, sees, queries, length, impl=impl
        )

    of = f"{queries}of" if queries < length and kind == "prefill" else ""
    name = f"{kind} {rows}x{of}{length} {heads}/{kv_heads}x{head_dim}{f' window {window}' if window else ''}"
    pairs = rows * sum(min(window or length, length - i) for i in range(queries))
    return name, 4.0 * heads * head_dim * pairs, by


def time_case(job: list, beside: list[str], variants: bool, theirs: Callable | None) -> dict:
    from fastkernels.kernels.decode_attention import hopper as decode
    from fastkernels.kernels.plans import plan_scope
    from fastkernels.kernels.prefill_attention import hopper as prefill

    name, operations, by = calls(job, theirs)
    row: dict[str, Any] = {"case": name}
    with plan_scope(frozen=True):
        out = by("hopper")()
        row["ours_us"] = us(by("hopper"))
        row["tflops"] = operations / row["ours_us"] / 1e6
        for other in [*(["fa3"] if theirs else []), *beside]:
            try:
                row[f"{other}_diff"] = (out.float() - by(other)().float()).abs().max().item()
                row[f"{other}_us"] = us(by(other))
            except Exception as error:
                row[f"{other}_error"] = repr(error)[:200]
        if "fa3_us" in row:
            row["ratio"] = row["fa3_us"] / row["ours_us"]
        if not variants:
            return row
        module: Any = prefill if job[0] == "prefill" else decode
        dims, shapes = job[3], module.SHAPES
        if module is prefill and dims in prefill.OF_BLOCKS_OF_16:
            shapes = prefill.OF_BLOCKS_OF_16
        kept = shapes[dims]
        for variant, changes in VARIANTS[job[0]].get(dims, {}).items():
            shapes[dims] = kept._replace(**changes)
            try:
                row[f"{variant}_diff"] = (out.float() - by("hopper")().float()).abs().max().item()
                row[f"{variant}_us"] = us(by("hopper"))
            except Exception as error:
                row[f"{variant}_error"] = repr(error)[:200]
        shapes[dims] = kept
    return row


def child(jobs: list[list], beside: list[str], variants: bool) -> None:
    import torch

    from fastkernels.measure.environment import environment

    theirs = fa3()
    say(environment=environment("cuda").model_dump(mode="json"))
    for job in jobs:
        began = time.perf_counter()
        try:
            outcome = check(*job[1:]) if job[0] == "check" else time_case(job, beside, variants, theirs)
        except Exception as error:
            outcome = {"failed": repr(error)[:1500]}
        say(job=job, seconds=round(time.perf_counter() - began, 2), **outcome)
        if "failed" in outcome:
            torch.cuda.synchronize()  # raises where the context is lost: nothing more could run here


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("attention_vs_fa3.json"))
    parser.add_argument("--vllm-path", type=Path)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--beside", default="triton", help="implementations, commas between them")
    parser.add_argument("--no-checks", action="store_true", help="times alone")
    parser.add_argument("--only", default="", help="prefill or decode (default: both)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        beside = [name for name in arguments.beside.split(",") if name]
        child(json.loads(arguments.child), beside, arguments.variants)
        return
    checks = [("check", kind, name) for kind, cases in CHECKS.items() for name in cases]
    soon = [one for one in checks if one[2] == "one-row"]
    jobs = [*soon, *FIRST, *(one for one in checks if one not in soon), *THEN]
    if arguments.no_checks:
        jobs = [*FIRST, *THEN]
    jobs = [list(job) for job in jobs if arguments.only in ("", job[1 if job[0] == "check" else 0])]
    options = [f"--beside={arguments.beside}", *(["--variants"] if arguments.variants else [])]
    report = Report(arguments.out, "attention_vs_fa3")
    run(__file__, jobs, options, arguments.seconds, arguments.vllm_path, report)
    for row in report.rows:
        shown = {k: v for k, v in row.items() if k not in ("job", "seconds")}
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items()))
    for one in report.wrong:
        print("WRONG", json.dumps(one)[:600])
    right = len(report.checks) - len(report.wrong)
    print(f"geomean {report.geomean}; {right} of {len(report.checks)} checks right")
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
