"""The reports of a GPU machine, several at a time: one part on each GPU, from one queue, in the order of the
jobs and, of a job, longest first; where --parts names some, in its order.

    python benchmarks/run_all.py OUT                          everything below, on all GPUs that are visible
    python benchmarks/run_all.py OUT --jobs self_test_llama   some of it
    python benchmarks/run_all.py OUT --resume --within 1500   what OUT has not yet, as much as ends by then
    python benchmarks/run_all.py OUT --jobs self_test --parts '*gla*' '*jamba*'   parts of it
    python benchmarks/run_all.py OUT --jobs audit_level_1 --lanes 4   four parts at a time on each GPU
    python benchmarks/run_all.py OUT --list

A part writes OUT/<its name>.json and .log. Parts that need several GPUs come first, one by one. A long
question is cut into parts of other cases or workloads; when all have ended they are joined into
OUT/<the job>.json. A part that outlasts its limit is interrupted as by Ctrl-C: its report is marked
incomplete, and so is the whole. The same happens to all parts that run when this program is interrupted, by
Ctrl-C or SIGTERM. Durations need a GPU of their own and cores that are not all busy: --lanes is
for audits and tests, which time nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fastkernels import registry

FK = ("-m", "fastkernels")
HERE = Path(__file__).parent
EXAMPLE = str(HERE.parent / "examples" / "cuda" / "triton")
VLLM = ("--vllm-path", "~/site-vllm")  # where vLLM's packages are looked for first
STOPPED = threading.Event()  # by whoever interrupts this program
# What an interrupted run may take to end its workers and write its report.
ENDING_S = 90
_LOOK_S = 0.5


@dataclass(frozen=True)
class Part:
    """`command` of python, which writes its report where the last flag says. `seconds`: on one H200, or a
    guess where it never ran; its limit is twice that. `gpus`: that it needs."""

    name: str
    seconds: int
    command: tuple[str, ...]
    gpus: int = 1


@dataclass(frozen=True)
class Job:
    """Parts, and the command of python that joins their reports; None where there is one part, the job's."""

    parts: tuple[Part, ...]
    join: tuple[str, ...] | None = None
    out: str = "--json"


def _kernels(mode: str, name: str, seconds: int, *filters: str) -> Part:
    return Part(name, seconds, (*FK, "kernels", f"--{mode}", *filters, "--json"))


def _l1(*tasks: str) -> tuple[str, ...]:
    return ("--architecture", "llama", *(word for task in tasks for word in ("--target", f"L1/{task}")))


def _eager(name: str, seconds: int, *tasks: str) -> Part:
    filters = ("--contract", "eager", *_l1(*tasks))
    return _kernels("self-test", f"self_test_eager_{name}", seconds, *filters)


def _level(architecture: str, level: int, seconds: int) -> Part:
    filters = ("--architecture", architecture, "--level", str(level))
    return _kernels("self-test", f"self_test_{architecture}_level_{level}", seconds, *filters)


def _eval(name: str, seconds: int, *workloads: str, model: str = "llama") -> Part:
    chosen = (word for workload in workloads for word in ("--workload", workload))
    flags = ("--model", model, "--size", "full", "--self-test")
    return Part(name, seconds, (*FK, "eval", *flags, *chosen, "--json"))


def _audit(level: int, case_s: float) -> Job:
    """A part for each task, or for each beginning of its cases' names where they are many. `case_s`: seconds
    of a case."""
    parts = []
    for entry in registry.find_tasks((), level):
        cases = registry.cases(entry, "full")
        counts = {"": len(cases)}
        if len(cases) > LONG_AUDIT:
            counts = Counter(case.id.split("-")[0] for case in cases)
        for first, count in counts.items():
            name = "_".join(filter(None, ("audit", *entry.id.split("/"), first)))
            its = ("--case", f"{first}-*") if first else ()
            command = (*FK, "audit", "--size", "full", "--device", "cuda", "--target", entry.id, *its)
            parts.append(Part(name, 20 + round(case_s * count), (*command, "--json")))
    return Job(tuple(parts), (str(HERE / "admission.py"),), "--out")


def _program(name: str, seconds: int, *flags: str, program: str = "", gpus: int = 1) -> Job:
    return Job((Part(name, seconds, (str(HERE / f"{program or name}.py"), *flags, "--out"), gpus),))


def _tests(name: str, seconds: int, processes: int, gpus: int = 1) -> Job:
    file = HERE.parent / "tests" / "gpu" / f"test_{name}.py"
    flags = ("-n", str(processes)) if processes > 1 else ()
    return _program(f"gpu_tests_{name}", seconds, str(file), *flags, program="gpu_tests", gpus=gpus)


POINTWISE = ("rms_norm", "glu", "rope", "embedding", "kv_cache")
ATTENTION = ("prefill_attention", "decode_attention")
# As seen on four H200s on 2026-11-22, FlashInfer's kernels built before (scripts/build_flashinfer.py),
# in seconds; of the evaluations as seen on two, later.
LLAMA_L1 = (
    _kernels("self-test", "self_test_llama_linear", 92, *_l1("linear")),
    _kernels("self-test", "self_test_llama_pointwise", 167, *_l1(*POINTWISE)),
    _kernels("self-test", "self_test_llama_attention", 277, *_l1(*ATTENTION, "softmax", "sampling")),
)
LLAMA = {level: _level("llama", level, seconds) for level, seconds in ((2, 262), (3, 138), (4, 94))}
# Flux, yolov10, and the first of gla and siglip2 as seen on two H200s on 2026-11-25; the others are guesses.
OTHERS = {
    "flux": (465, 260),
    "gla": (237, 140),
    "jamba": (350, 170),
    "mixtral": (220, 100),
    "siglip2": (180, 110),
    "whisper": (280, 180),
    "yolov10": (284, 417),
}
RANKS = Part(
    "self_test_ranks", 40, (*FK, "kernels", "--self-test", "--target", "L1/all_reduce", "--json"), gpus=2
)
VS_REFERENCE = {
    "gla": 262,
    "siglip2": 311,
    "yolov10": 184,
    "whisper": 361,
    "mixtral": 364,
    "jamba": 450,
    "flux": 545,
}
EVAL_LLAMA = (
    _eval("eval_llama_prefill_heavy", 470, "prefill-heavy"),
    _eval("eval_llama_balanced", 335, "balanced"),
    _eval("eval_llama_decode_heavy", 610, "decode-heavy"),
    _eval("eval_llama_latency", 130, "single-request", "fixed-batch-32"),
)
# Workloads of 1,000 requests would take an hour where a turn loads 94 GB first. Seconds as seen.
QUICK = ("single-request", "prefill-heavy-smoke")


def _other(model: str, seconds: int, *workloads: str) -> Part:
    return _eval(f"eval_{model}_self_test", seconds, *workloads, model=model)


EVAL_OTHERS = (
    _other("flux", 685),
    _other("gla", 85, "fixed-batch-32", *QUICK),
    _other("jamba", 251, *QUICK),
    _other("mixtral", 234, *QUICK),
    _other("siglip2", 190),
    _other("whisper", 324),
    _other("yolov10", 375),
)
# Of tests/gpu: seconds, processes beside each other, and GPUs where more than one. Engine, split_kernels,
# listener and sample as seen; of the others guesses.
GPU_TESTS = {
    "engine": (150, 1),
    "runner": (200, 1),
    "split_kernels": (30, 1),
    "sample": (30, 1),
    "encoder": (200, 1),
    "listener": (60, 1),
    "detector": (40, 1),
    "image_pipeline": (60, 1),
    "cross_attention": (150, 1),
    "moe_kernels": (120, 4),
    "mamba_kernels": (60, 4),
    "gla_kernels": (150, 4),
    "capture": (60, 1),
    "attribution": (60, 1),
    "gate": (120, 1),
    "redteam": (300, 1),
    "ranks": (120, 1, 2),
    "attention_kernels": (500, 8),
    "pointwise_kernels": (500, 8),
}
LONG_AUDIT = 80  # cases: a task with more is audited in parts
# Seconds of a case, with its float64 oracle and some 150 changed calls, in one of ten lanes on a GPU: of most
# of L1 and L2 as seen (docs/measured.md), of layers and models guesses.
AUDIT = {1: 4.0, 2: 8.0, 3: 15.0, 4: 30.0}
JOBS: dict[str, Job] = {
    "self_test_llama": Job((*LLAMA_L1, *LLAMA.values()), (*FK, "merge")),
    "kernels_llama": Job(
        (
            _kernels("providers", "kernels_llama_linear", 177, *_l1("linear")),
            _kernels("providers", "kernels_llama_pointwise", 475, *_l1(*POINTWISE)),
            _kernels("providers", "kernels_llama_prefill", 231, *_l1("prefill_attention")),
            _kernels("providers", "kernels_llama_decode", 300, *_l1("decode_attention")),
            _kernels("providers", "kernels_llama_softmax", 140, *_l1("softmax")),
            _kernels("providers", "kernels_llama_sampling", 382, *_l1("sampling")),
        ),
        (*FK, "merge"),
    ),
    # What a candidate's user waits for, and the share of it that is measuring.
    "kernels_llama_candidate": Job(
        (
            Part(
                "kernels_llama_candidate",
                93,
                (*FK, "kernels", "--architecture", "llama", "--candidates", EXAMPLE, "--json"),
            ),
        )
    ),
    "eval_llama_self_test": Job(EVAL_LLAMA, (*FK, "score")),
    # What `fk eval --suite default --self-test` says of these workloads, a model at a time.
    "eval_suite_default": Job((*EVAL_LLAMA, *EVAL_OTHERS), (*FK, "score")),
    **{part.name: Job((part,)) for part in EVAL_OTHERS},
    "self_test": Job(
        (
            *LLAMA_L1,
            LLAMA[2],
            RANKS,
            *(_level(name, level, s) for name, both in OTHERS.items() for level, s in zip((1, 2), both)),
        ),
        (str(HERE / "self_test.py"),),
        "--out",
    ),
    # What single calls of identical code differ by: for records/base.py LEAST_NOISE. Seconds guessed.
    "self_test_eager": Job(
        (
            _eager("pointwise", 200, "linear", *POINTWISE),
            _eager("attention", 300, *ATTENTION, "softmax", "sampling"),
        ),
        (str(HERE / "self_test.py"),),
        "--out",
    ),
    "ncu_agreement": _program("ncu_agreement", 80),
    **{
        f"{name}_vs_reference": _program(f"{name}_vs_reference", seconds, name, program="vs_reference")
        for name, seconds in VS_REFERENCE.items()
    },
    "vs_vllm_llama": _program("vs_vllm_llama", 1000, *VLLM, program="vs_vllm"),
    "mixtral_vs_vllm": _program(
        "mixtral_vs_vllm", 400, "mixtral", "--reference", "vllm", *VLLM, program="vs_reference"
    ),
    "agreement_llama": _program("agreement_llama", 120, "llama", program="agreement"),
    "gate_trials": _program("gate_trials", 760, "--times", "20"),
    "redteam": _program("redteam", 335, "--alternates", str(HERE / "h200" / "kernels_llama.json")),
    **{f"gpu_tests_{name}": _tests(name, *costs) for name, costs in GPU_TESTS.items()},
    **{f"audit_level_{level}": _audit(level, case_s) for level, case_s in AUDIT.items()},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument(
        "--parts", nargs="+", default=["*"], metavar="GLOB", help="only these parts of the jobs"
    )
    parser.add_argument("--gpus", help="as CUDA_VISIBLE_DEVICES; default: all")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="parts beside each other on a GPU")
    parser.add_argument("--resume", action="store_true", help="leave out parts whose whole report OUT has")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="start nothing that takes longer")
    parser.add_argument("--list", action="store_true", help="say what would run")
    arguments = parser.parse_args()
    every = [part for job in arguments.jobs for part in sorted(JOBS[job].parts, key=lambda p: -p.seconds)]
    wanted = (part for glob in arguments.parts for part in every if fnmatchcase(part.name, glob))
    # A part that two jobs share, or two globs, runs once.
    parts = list({part.name: part for part in wanted}.values())
    if not parts:
        parser.error(
            f"no part of {', '.join(arguments.jobs)} is called {' or '.join(arguments.parts)}: see --list"
        )
    if arguments.resume:
        parts = [part for part in parts if not _is_there(arguments.out / f"{part.name}.json")]
    if arguments.list:
        print(*(f"{part.seconds:5} s  {' '.join(part.command)}" for part in parts), sep="\n")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpus = arguments.gpus.split(",") if arguments.gpus else _gpus()
    for part in parts:
        if part.gpus > len(gpus):
            print(f"{part.name}: left out, it needs {part.gpus} GPUs and here are {len(gpus)}")
    queue = Queue([part for part in parts if part.gpus <= len(gpus)], arguments.within)
    for part in queue.of(several_gpus=True):
        _run(part, ",".join(gpus[: part.gpus]), arguments.out)

    def serve(gpu: str) -> None:
        for part in queue.of(several_gpus=False):
            _run(part, gpu, arguments.out)

    lanes = [threading.Thread(target=serve, args=(gpu,)) for gpu in gpus * arguments.lanes]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    for job in arguments.jobs:
        _join(job, arguments.out)


class Queue:
    """Parts in order, each to one of the threads that iterate over those for one GPU, or for several;
    within: seconds from now, by which the part should have ended. A part that would outlast them is passed
    over for a shorter one."""

    def __init__(self, parts: list[Part], within: float | None) -> None:
        self._parts, self._lock = parts, threading.Lock()
        self._deadline = None if within is None else time.monotonic() + within

    def of(self, several_gpus: bool) -> Iterator[Part]:
        while (part := self._next(several_gpus)) is not None:
            yield part

    def _next(self, several_gpus: bool) -> Part | None:
        with self._lock:
            left_s = float("inf") if self._deadline is None else self._deadline - time.monotonic()
            those = [part for part in self._parts if (part.gpus > 1) == several_gpus]
            fitting = [part for part in those if part.seconds <= left_s]
            if not fitting or STOPPED.is_set():
                return None
            self._parts.remove(fitting[0])
            return fitting[0]


def _is_there(report: Path) -> bool:
    """Whether a part's report is there, and not one of a run that was interrupted."""
    return report.is_file() and json.loads(report.read_text()).get("complete", True)


def _gpus() -> list[str]:
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return [str(number) for number in range(len(listed.splitlines()))]


def _run(part: Part, gpu: str, out: Path) -> None:
    begin = time.monotonic()
    command = [sys.executable, *part.command, str(out / f"{part.name}.json")]
    with (out / f"{part.name}.log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
            start_new_session=True,
        )
        if (status := _ended(process, 2 * part.seconds)) is not None:
            how = str(status)
        else:
            process.send_signal(signal.SIGINT)
            try:
                how = f"{process.wait(ENDING_S)}, interrupted"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                how = "killed: no report"
    print(f"{part.name}: exit {how}, {time.monotonic() - begin:.0f} s on GPU {gpu}", flush=True)


def _ended(process: subprocess.Popen, limit_s: float) -> int | None:
    """Its exit status; None where it did not end by then, or is to be interrupted."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and not STOPPED.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
    return process.poll()


def _join(name: str, out: Path) -> None:
    job, whole = JOBS[name], out / f"{name}.json"
    if job.join is not None:
        whole.unlink(missing_ok=True)  # of an earlier run
    paths = [out / f"{part.name}.json" for part in job.parts]
    if missing := [path.name for path in paths if not path.is_file()]:
        print(f"{name}: not joined, {', '.join(missing)} missing")
        return
    if job.join is not None:
        command = [sys.executable, *job.join, *map(str, paths), job.out, str(whole)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            whole.unlink(missing_ok=True)
            print(f"{name}: not joined, exit {done.returncode}\n{done.stderr}")
            return
    print(f"{name}: {whole}")


def heed_interrupts() -> None:
    """Also for the parts, which would ignore SIGINT where this program does, in the background of a shell."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: STOPPED.set())


if __name__ == "__main__":
    heed_interrupts()
    main()
