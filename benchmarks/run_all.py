"""The reports of a GPU machine, several at a time: one job on each GPU, from one queue, longest first.

    python benchmarks/run_all.py OUT                          everything below, on all GPUs that are visible
    python benchmarks/run_all.py OUT --jobs self-test eval    some of it
    python benchmarks/run_all.py OUT --list

A job writes OUT/<its name>.json and .log. A long question is cut into jobs of other cases or workloads; when
all have ended, the parts of each are joined into OUT/<the whole>.json by `fk merge` and `fk score`. A job
that outlasts its limit is interrupted as by Ctrl-C: its report is marked incomplete, and so is the whole.
Durations need a GPU of their own and cores that are not all busy: give no GPU twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

FK = [sys.executable, "-m", "fastkernels"]
HERE = Path(__file__).parent
# What an interrupted run may take to end its workers and write its report.
ENDING_S = 90


@dataclass(frozen=True)
class Part:
    """One job. `seconds`: on one H200, or a guess where it never ran; its limit is twice that."""

    name: str
    seconds: int
    command: tuple[str, ...]


def _kernels(mode: str, name: str, seconds: int, *filters: str) -> Part:
    return Part(name, seconds, ("kernels", f"--{mode}", *filters))


def _l1(*tasks: str) -> tuple[str, ...]:
    return ("--architecture", "llama", *(word for task in tasks for word in ("--target", f"L1/{task}")))


def _eval(name: str, seconds: int, *workloads: str) -> Part:
    chosen = (word for workload in workloads for word in ("--workload", workload))
    flags = ("--model", "llama", "--size", "full", "--self-test", "--rounds", "2")
    return Part(name, seconds, ("eval", *flags, *chosen))


POINTWISE = ("rms_norm", "glu", "rope", "embedding", "kv_cache")
ATTENTION = ("prefill_attention", "decode_attention")
# Seconds as seen on 2026-11-22 with FlashInfer's kernels built before (scripts/build_flashinfer.py).
JOBS: dict[str, tuple[Part, ...]] = {
    "self_test_llama": (
        _kernels("self-test", "self_test_llama_linear", 110, *_l1("linear")),
        _kernels("self-test", "self_test_llama_pointwise", 140, *_l1(*POINTWISE)),
        _kernels("self-test", "self_test_llama_attention", 270, *_l1(*ATTENTION, "softmax", "sampling")),
        _kernels("self-test", "self_test_llama_level_2", 240, "--architecture", "llama", "--level", "2"),
        _kernels("self-test", "self_test_llama_level_3", 120, "--architecture", "llama", "--level", "3"),
        _kernels("self-test", "self_test_llama_level_4", 100, "--architecture", "llama", "--level", "4"),
    ),
    "kernels_llama": (
        _kernels("providers", "kernels_llama_linear", 190, *_l1("linear")),
        _kernels("providers", "kernels_llama_pointwise", 450, *_l1(*POINTWISE)),
        _kernels("providers", "kernels_llama_prefill", 300, *_l1("prefill_attention")),
        _kernels("providers", "kernels_llama_decode", 350, *_l1("decode_attention")),
        _kernels("providers", "kernels_llama_softmax", 120, *_l1("softmax")),
        _kernels("providers", "kernels_llama_sampling", 500, *_l1("sampling")),
    ),
    "eval_llama_self_test": (
        _eval("eval_llama_prefill_heavy", 400, "prefill-heavy"),
        _eval("eval_llama_balanced", 300, "balanced"),
        _eval("eval_llama_decode_heavy", 500, "decode-heavy"),
        _eval("eval_llama_latency", 95, "single-request", "fixed-batch-32"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--gpus", help="as CUDA_VISIBLE_DEVICES; default: all")
    parser.add_argument("--list", action="store_true", help="say what would run")
    arguments = parser.parse_args()
    parts = [part for job in arguments.jobs for part in JOBS[job]]
    parts.sort(key=lambda part: -part.seconds)
    if arguments.list:
        print(*(f"{part.seconds:5} s  {' '.join(part.command)}" for part in parts), sep="\n")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpus = arguments.gpus.split(",") if arguments.gpus else _gpus()
    lock = threading.Lock()

    def serve(gpu: str) -> None:
        while True:
            with lock:
                if not parts:
                    return
                part = parts.pop(0)
            _run(part, gpu, arguments.out)

    lanes = [threading.Thread(target=serve, args=(gpu,)) for gpu in gpus]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    for job in arguments.jobs:
        _join(job, arguments.out)


def _gpus() -> list[str]:
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return [str(number) for number in range(len(listed.splitlines()))]


def _run(part: Part, gpu: str, out: Path) -> None:
    begin = time.monotonic()
    command = [*FK, *part.command, "--json", str(out / f"{part.name}.json")]
    with (out / f"{part.name}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
            start_new_session=True,
        )
        try:
            how = str(process.wait(2 * part.seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                how = f"{process.wait(ENDING_S)}, interrupted"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                how = "killed: no report"
    print(f"{part.name}: exit {how}, {time.monotonic() - begin:.0f} s on GPU {gpu}", flush=True)


def _join(job: str, out: Path) -> None:
    paths = [out / f"{part.name}.json" for part in JOBS[job]]
    if missing := [path.name for path in paths if not path.is_file()]:
        print(f"{job}: not joined, {', '.join(missing)} missing")
        return
    verb = "score" if job.startswith("eval") else "merge"
    whole = out / f"{job}.json"
    done = subprocess.run(
        [*FK, verb, *map(str, paths), "--json", str(whole)], capture_output=True, text=True, check=False
    )
    print(f"{job}: {whole}" if whole.is_file() else f"{job}: {done.stderr}")


if __name__ == "__main__":
    main()
