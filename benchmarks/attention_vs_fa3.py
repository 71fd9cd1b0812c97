"""Our Hopper attention beside FlashAttention-3 and our other implementations, on Llama-3.1-8B shapes.

    python benchmarks/attention_vs_fa3.py OUT.json [--variants] [--beside triton,flashinfer] [--no-checks]

First every check: against float64, over caches whose unseen slots are NaN. A child process runs them, so that
a kernel that hangs or faults costs one check; then times, by CUDA graphs, the median. FlashAttention-3 is
that of vllm.vllm_flash_attn, where it can be imported. `--variants` times other tile shapes, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
MOST_LOST = 3  # processes, before the rest is left out
PATIENCE = 20.0  # seconds without a line from the child
FIRST_PATIENCE = 60.0  # imports and CUDA's start
BLOCK = 16
# (query heads, key/value heads, head dimension, sliding window or 0) of registered models.
LLAMA, MIXTRAL, QWEN2_VL = (32, 8, 128, 0), (32, 8, 128, 4096), (28, 4, 128, 0)
GPT_OSS, GEMMA, QWEN3_NEXT = (64, 8, 64, 128), (16, 8, 256, 1024), (16, 2, 256, 0)
PREFILL = (
    *((*LLAMA, *batch) for batch in ((8, 1024), (16, 512), (1, 4096), (64, 128), (1, 512))),
    (*MIXTRAL, 1, 8192), (*QWEN2_VL, 4, 1024), (*GPT_OSS, 4, 2048), (64, 8, 64, 0, 4, 2048),
    (*GEMMA, 4, 2048), (*QWEN3_NEXT, 4, 2048), (*LLAMA, 1, 4801, 162), (*LLAMA, 1, 1009, 239),
    (*LLAMA, 1, 4096, 1920), (20, 20, 64, 0, 16, 4),
)  # fmt: skip
DECODE = (
    *((*LLAMA, *batch) for batch in ((1, 8192), (1, 2048), (1, 256), (8, 1024), (4, 8192), (32, 256))),
    (*LLAMA, 128, 1024), (*LLAMA, 256, 768), (64, 8, 64, 0, 1, 8192), (*GEMMA, 1, 8192),
    (*QWEN3_NEXT, 1, 8192), (*QWEN3_NEXT, 32, 1024),
)  # fmt: skip
BIG = {"heads": (32, 8), "head_dim": 128}
FIFTY = [7 * n % 41 for n in range(50)]
CHECKS = {
    "prefill": {
        "one-tile": dict(query_lens=[20], seq_lens=[20], **BIG),
        "one-row": dict(query_lens=[300], seq_lens=[300], **BIG),
        "many-rows": dict(query_lens=[5, 1, 133, 16], seq_lens=[5, 1, 133, 16], **BIG),
        "chunked": dict(query_lens=[50, 1, 133], seq_lens=[1000, 640, 400], **BIG),
        "few-of-many": dict(query_lens=[20, 162], seq_lens=[5000, 3000], **BIG),
        "few-of-many-sinks": dict(query_lens=[20, 70], seq_lens=[2000, 3000], sinks=True, window=900, **BIG),
        "rows-without-queries": dict(query_lens=[0, 7, 0, 130, 0], seq_lens=[9, 7, 0, 200, 4], **BIG),
        "fifty-rows": dict(query_lens=FIFTY, seq_lens=[n + i for i, n in enumerate(FIFTY)], **BIG),
        "window": dict(query_lens=[300, 3, 90], seq_lens=[300, 800, 1300], window=133, **BIG),
        "window-of-one": dict(query_lens=[200, 3], seq_lens=[200, 18], window=1, **BIG),
        "blocks-of-256": dict(query_lens=[9, 140], seq_lens=[9, 600], block_size=256, **BIG),
        "blocks-of-8": dict(query_lens=[9, 140], seq_lens=[9, 300], block_size=8, **BIG),
        "no-groups": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (3, 3), "head_dim": 128},
        "groups-of-7": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (14, 2), "head_dim": 128},
        "head-dim-64": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 2), "head_dim": 64},
        "head-dim-80": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 2), "head_dim": 80},
        "head-dim-192": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 2), "head_dim": 192},
        "head-dim-256": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 4), "head_dim": 256},
        "sinks": dict(query_lens=[50, 1, 133], seq_lens=[1000, 640, 400], sinks=True, **BIG),
        "sinks-window": dict(query_lens=[300, 90], seq_lens=[300, 1300], window=128, sinks=True, **BIG),
        "long": {"query_lens": [1500], "seq_lens": [2100], "heads": (8, 2), "head_dim": 128},
    },
    "decode": {
        "one-key": dict(seq_lens=[1], **BIG),
        "one-row": dict(seq_lens=[1000], **BIG),
        "mixed": dict(seq_lens=[1, 15, 16, 17, 300, 2049], **BIG),
        "padding-rows": dict(seq_lens=[5, 0, 640, 0], **BIG),
        "many-rows": {"seq_lens": [7 * n % 97 + 1 for n in range(200)], "heads": (4, 2), "head_dim": 64},
        "window": dict(seq_lens=[3, 400, 900, 2000], window=333, **BIG),
        "window-of-one": dict(seq_lens=[1, 17, 40], window=1, **BIG),
        "blocks-of-256": dict(seq_lens=[9, 300], block_size=256, **BIG),
        "no-groups": {"seq_lens": [21, 400], "heads": (3, 3), "head_dim": 128},
        "groups-of-16": {"seq_lens": [21, 400], "heads": (16, 1), "head_dim": 128},
        "head-dim-80": {"seq_lens": [21, 400], "heads": (8, 2), "head_dim": 80},
        "head-dim-256": {"seq_lens": [21, 400], "heads": (8, 4), "head_dim": 256},
        "sinks": {"seq_lens": [1, 0, 400, 3000], "heads": (64, 8), "head_dim": 64, "sinks": True},
        "sinks-window": {
            "seq_lens": [3, 200, 3000], "heads": (64, 8), "head_dim": 64, "window": 128, "sinks": True
        },
        "long": dict(seq_lens=[8192], **BIG),
    },
}  # fmt: skip
# Of head dimension 128: what is tried beside the shape that is chosen.
VARIANTS = {
    "prefill": {
        "128x3": (128, 3, True),
        "128x2-together": (128, 2, False),
        "128x2-waits": (128, 2, True, False),
        "128x2-whole": (128, 2, True, True, False),
        "64x4": (64, 4, True),
    },
    "decode": {
        "128x3-1": (128, 3, 1),
        "128x2-1": (128, 2, 1),
        "64x6-1": (64, 6, 1),
        "64x2-3": (64, 2, 3),
    },
}
TRITON_SPLITS = (16, 32)


# --- in the child: one line of JSON for each outcome ---


def say(**outcome: object) -> None:
    print(json.dumps(outcome), flush=True)


def check(kind: str, name: str) -> dict:
    import torch
    from tests.attention_case import ROUNDING, attention_case

    from fastkernels.kernels import registered

    facts = dict(CHECKS[kind][name])
    facts.setdefault("query_lens", [1] * len(facts["seq_lens"]))
    from fastkernels.kernels.prefill_attention import hopper as prefill

    chosen = dict(prefill.SHAPES)
    errors: dict[str, float] = {}
    details: list[str] = []
    for dtype, half in ((torch.bfloat16, True), (torch.float16, True), (torch.bfloat16, False)):
        if kind == "decode" and not half:
            continue
        prefill.SHAPES |= {dims: shape._replace(half=half) for dims, shape in chosen.items()}
        case = attention_case(dtype=dtype, device="cuda", **facts)
        args = tuple(
            0 if a is None else a for a in (case.decode_args if kind == "decode" else case.prefill_args)
        )
        for again in range(2):  # counters are left at zero
            out = registered[f"{kind}_attention"](*args, impl="hopper")
            torch.cuda.synchronize()
            error = case.error(out) / ROUNDING[dtype]
            errors[f"{dtype} {'half' if half else 'whole'} {again}"] = error
            if not error <= 1.0:
                details.append(detail(case, out))
    prefill.SHAPES |= chosen
    right = all(error <= 1.0 for error in errors.values())
    return {
        "check": f"{kind}/{name}",
        "errors": errors,
        "allowed": 1.0,
        "right": right,
        "details": details[:2],
    }


def detail(case: Any, out: Any) -> str:
    """Where an answer is wrong: tokens and heads, and the worst one's first elements."""
    answer = case.answer_THK
    error_TH = (out.double() - answer).norm(dim=2) / answer.norm(dim=2).clamp_min(1e-9)
    bad_TH = ~(error_TH < 0.02)
    tokens, heads = bad_TH.any(1).nonzero().flatten().tolist(), bad_TH.any(0).nonzero().flatten().tolist()
    if not tokens:
        return "near everywhere"
    worst = bad_TH.nonzero()[0].tolist()
    got, wanted = out[tuple(worst)], answer[tuple(worst)]
    wrong = (~((got.double() - wanted).abs() < 0.05)).nonzero().flatten().tolist()
    return (
        f"{int(bad_TH.sum())} of {bad_TH.numel()}: tokens {tokens[:12]}.. {tokens[-1]}, heads {heads[:12]}; "
        f"at {worst} "
        f"{len(wrong)} elements {wrong[:12]}, got {[round(x, 3) for x in got[:8].tolist()]}, "
        f"wanted {[round(x, 3) for x in wanted[:8].tolist()]}"
    )


def us(call: Callable[[], object]) -> float:
    import torch
    import triton

    from fastkernels.kernels import counters

    call()
    counters.prepare()
    torch.cuda.synchronize()
    return triton.testing.do_bench_cudagraph(call, rep=20, return_mode="median") * 1e3


def paged(rows: int, length: int, kv_heads: int, head_dim: int) -> tuple:
    import torch

    blocks = -(-length // BLOCK)
    shape = (rows * blocks + 8, BLOCK, kv_heads, head_dim)
    k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv")
    tables = torch.randperm(rows * blocks, device="cuda").to(torch.int32).view(rows, blocks)
    return k, v, tables


def fa3() -> Callable | None:
    try:
        from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

        return flash_attn_varlen_func
    except Exception as error:
        say(note=f"no FlashAttention-3: {error!r}"[:300])
        return None


def time_case(
    kind: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int,
    rows: int,
    length: int,
    queries: int | None = None,
    *,
    beside: list[str],
    variants: bool,
    theirs: Callable | None,
) -> dict:
    import torch

    from fastkernels import kernels
    from fastkernels.kernels.decode_attention import hopper as decode
    from fastkernels.kernels.decode_attention import triton as decode_triton
    from fastkernels.kernels.plans import plan_scope
    from fastkernels.kernels.prefill_attention import hopper as prefill

    k, v, tables = paged(rows, length, kv_heads, head_dim)
    queries, scale = (queries or length if kind == "prefill" else 1), head_dim**-0.5
    q = torch.randn(rows * queries, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    starts = torch.arange(0, rows * queries + 1, queries, device="cuda", dtype=torch.int32)
    lens = torch.full((rows,), length, device="cuda", dtype=torch.int32)

    def ours(impl: str | None) -> Callable[[], torch.Tensor]:
        if kind == "prefill":
            return lambda: kernels.prefill_attention(
                q, k, v, starts, lens, tables, scale, window or None, queries, length, impl=impl
            )
        return lambda: kernels.decode_attention(
            q, k, v, lens, tables, scale, window or None, length, impl=impl
        )

    of = f"{queries}of" if kind == "prefill" and queries < length else ""
    name = f"{kind} {rows}x{of}{length} {heads}/{kv_heads}x{head_dim}{f' window {window}' if window else ''}"
    row: dict = {"case": name}
    pairs = sum(min(window or length, length - i) for i in range(queries))
    flops = 4 * heads * head_dim * rows * pairs
    with plan_scope(frozen=True):
        out = ours("hopper")()
        row["ours_us"] = us(ours("hopper"))
        row["tflops"] = flops / row["ours_us"] / 1e6
        if theirs is not None:
            call = lambda: theirs(
                q, k, v, queries, starts, length, seqused_k=lens, softmax_scale=scale, causal=True,
                block_table=tables, fa_version=3, window_size=[window - 1, 0] if window else [-1, -1],
            )  # fmt: skip
            try:
                row["fa3_diff"] = (out.float() - call().float()).abs().max().item()
                row["fa3_us"] = us(call)
                row["ratio"] = row["fa3_us"] / row["ours_us"]
            except Exception as error:
                row["fa3_error"] = repr(error)[:200]
        for impl in beside:
            try:
                row[f"{impl}_diff"] = (out.float() - ours(impl)().float()).abs().max().item()
                row[f"{impl}_us"] = us(ours(impl))
            except Exception as error:
                row[f"{impl}_error"] = repr(error)[:200]
        if variants and head_dim == 128 and not window:
            module = prefill if kind == "prefill" else decode
            kept = module.SHAPES[head_dim]
            for name, shape in VARIANTS[kind].items():
                module.SHAPES[head_dim] = module.Shape(*shape)
                try:
                    diff = (ours("hopper")().float() - out.float()).abs().max().item()
                    row[name] = us(ours("hopper"))
                    if not diff < 0.05:
                        row[f"{name}_diff"] = diff
                except Exception as error:
                    row[f"{name}_error"] = repr(error)[:200]
            module.SHAPES[head_dim] = kept
            if kind == "decode" and rows == 1:
                most = decode_triton.MAX_SPLITS
                for splits in TRITON_SPLITS:
                    decode_triton.MAX_SPLITS = splits
                    row[f"triton-splits-{splits}"] = us(ours("triton"))
                decode_triton.MAX_SPLITS = most
    return row


def child(jobs: list[list], beside: list[str], variants: bool) -> None:
    import torch

    from fastkernels.kernels import hopper
    from fastkernels.kernels.cuda_source import driver

    if jobs[0][0] == "check":
        # A kernel that waits for ever says where, and ends.
        plain = hopper.constants
        hopper.constants = lambda *args: {**plain(*args), "WATCHDOG": 1}
    theirs = fa3() if any(job[0] == "time" for job in jobs) else None
    say(started=torch.cuda.get_device_name(), torch=torch.__version__, driver=bool(driver()))
    for what, kind, *rest in jobs:
        began = time.perf_counter()
        try:
            if what == "check":
                outcome = check(kind, *rest)
            else:
                outcome = time_case(kind, *rest, beside=beside, variants=variants, theirs=theirs)
        except Exception as error:
            outcome = {"failed": repr(error)[:1500]}
        say(job=[what, kind, *rest], seconds=round(time.perf_counter() - began, 2), **outcome)
        if "failed" in outcome:
            try:
                torch.cuda.synchronize()
            except Exception:
                os._exit(3)  # the context is lost


# --- in the parent ---


def lines_of(process: subprocess.Popen) -> Iterator[str | None]:
    """Lines of the child; None where it was silent for too long."""
    queue: Queue[str | None] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            queue.put(line)
        queue.put(None)

    threading.Thread(target=read, daemon=True).start()
    patience = FIRST_PATIENCE
    while True:
        try:
            line = queue.get(timeout=patience)
        except Empty:
            yield None
            return
        if line is None:
            return
        patience = PATIENCE
        yield line


def run(jobs: list[list], options: list[str]) -> list[dict]:
    outcomes: list[dict] = []
    lost = 0
    while jobs and lost < MOST_LOST:
        command = [sys.executable, __file__, "-", "--child", json.dumps(jobs), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        done, hung, talk = 0, False, []
        for line in lines_of(process):
            if line is None:
                hung = True
                process.kill()
                break
            try:
                outcome = json.loads(line)
            except ValueError:
                talk.append(line.rstrip())
                continue
            print(json.dumps(outcome), flush=True)
            if "job" in outcome:
                outcomes.append(outcome)
                done += 1
        process.wait()
        if done < len(jobs):
            failed = "silent for too long" if hung else f"the process ended with {process.returncode}"
            outcome = {"job": jobs[done], "failed": failed, "said": talk[-12:]}
            if not (outcomes and outcomes[-1].get("failed") and process.returncode == 3):
                print(json.dumps(outcome), flush=True)
                outcomes.append(outcome)
                done += 1
            lost += 1
        jobs = jobs[done:]
    outcomes += [{"job": job, "failed": f"not run: {lost} processes were lost before it"} for job in jobs]
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--beside", default="triton", help="implementations, commas between them")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--only", default="", help="prefill or decode (default: both)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    beside = [name for name in arguments.beside.split(",") if name]
    if arguments.child:
        child(json.loads(arguments.child), beside, arguments.variants)
        return
    options = [f"--beside={arguments.beside}", *(["--variants"] if arguments.variants else [])]
    kinds = [kind for kind in ("prefill", "decode") if arguments.only in ("", kind)]
    checks = [] if arguments.no_checks else run([["check", k, n] for k in kinds for n in CHECKS[k]], options)
    wrong = [c for c in checks if not c.get("right")]
    shapes = {"prefill": PREFILL, "decode": DECODE}
    rows = run([["time", k, *shape] for k in kinds for shape in shapes[k]], options)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    report = {
        "rows": [{key: value for key, value in row.items() if key not in ("job", "seconds")} for row in rows],
        "geomean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "checks": checks,
        "environment": environment(),
    }
    Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")
    for row in report["rows"]:
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()))
    print(f"geomean {report['geomean']}; {len(checks) - len(wrong)} of {len(checks)} checks right")
    for one in wrong:
        print("WRONG", json.dumps(one)[:600])
    sys.exit(1 if wrong else 0)


def environment() -> dict:
    from importlib.metadata import PackageNotFoundError, version

    import torch
    import triton

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__, "vllm": installed("vllm"),
            "flashinfer": installed("flashinfer-python"), "python": platform.python_version()}  # fmt: skip


if __name__ == "__main__":
    main()
