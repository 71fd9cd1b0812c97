"""Whether the `graph` contract reads what Nsight Compute reads, for ten kernels. Needs CUDA and `ncu`.

    python benchmarks/ncu_agreement.py --out benchmarks/h200/ncu_agreement.json

graph_us is the baseline's median in `fk kernels --self-test`: a chain of calls, cold L2, divided by their
number. ncu_us is the sum of `gpu__time_duration` over the kernels of one call in a process of its own, with
caches flushed and clocks left alone. `--call` is this program's own: one call between the profiler's marks.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CASES = {
    "L1/rms_norm": ["llama-8b-T8-D4096-bf16", "llama-8b-T512-D4096-bf16", "llama-8b-T8192-D4096-bf16"],
    "L1/glu": ["llama-8b-T512-N28672-bf16", "llama-8b-T8192-N28672-bf16"],
    "L1/rope": ["llama-8b-T2048-K128-bf16"],
    "L1/embedding": ["llama-8b-T2048-V128256-D4096-bf16"],
    "L1/kv_cache": ["llama-8b-T2048-JK8x128-bf16"],
    "L1/linear": ["llama-8b-T1-K4096-N6144-bf16", "llama-8b-T2048-K4096-N6144-bf16"],
}
NCU = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv"]
NCU += ["--metrics", "gpu__time_duration.sum"]
CALLS = 5  # profiled in one process; the median counts
SEED = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--call", nargs=2, metavar=("TASK", "CASE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        _call(*arguments.call)
        return
    report = _report()
    text = json.dumps(report, indent=1) + "\n"
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def _report() -> dict[str, Any]:
    from fastkernels.measure.environment import environment

    rows = []
    for task, cases in CASES.items():
        for case in cases:
            graph_us, ncu_us = _graph_us(task, case), _ncu_us(task, case)
            limit_us = max(0.05 * ncu_us, 0.5 if ncu_us < 5 else 0.0)
            agrees = abs(graph_us - ncu_us) <= limit_us
            rows.append(
                {"kernel": f"{task} {case}", "graph_us": graph_us, "ncu_us": ncu_us, "agrees": agrees}
            )
            print(rows[-1], file=sys.stderr, flush=True)
    return {"kind": "ncu-agreement", "rows": rows, "environment": environment("cuda").model_dump()}


def _graph_us(task: str, case: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "fastkernels", "kernels", "--self-test", "--target", task]
        subprocess.run([*command, "--case", case, "--json", str(path)], stdout=subprocess.DEVNULL, check=True)
        rows = json.loads(path.read_text())["rows"]
    (row,) = (row for row in rows if row["case"] == case)
    return row["baseline_us"]


def _ncu_us(task: str, case: str) -> float:
    command = [*NCU, sys.executable, __file__, "--call", task, case]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if not lines:
        raise SystemExit(f"ncu profiled nothing of {task} {case}:\n{done.stdout}\n{done.stderr}")
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    calls: dict[str, float] = {}
    for record in csv.DictReader(io.StringIO("\n".join(lines))):
        if record["Metric Name"] == "gpu__time_duration.sum":
            spent_us = float(record["Metric Value"].replace(",", "")) * scale[record["Metric Unit"]]
            calls[record["ID"]] = spent_us
    kernels = len(calls) // CALLS  # of one call
    durations = [calls[key] for key in sorted(calls, key=int)]
    return statistics.median(
        sum(durations[first : first + kernels]) for first in range(0, kernels * CALLS, kernels)
    )


def _call(task: str, case_id: str) -> None:
    import torch

    from fastkernels import registry
    from fastkernels.loader.inputs import draw, trial_specs
    from fastkernels.loader.materialize import bind, build_module
    from fastkernels.loader.overlay import Overlay

    (case,) = (case for case in registry.cases(task, "full") if case.id == case_id)
    module = build_module(Overlay.over_baseline(), case, "cuda")
    call = bind(module, case, draw(trial_specs(case, module), case, SEED, device="cuda"))
    with torch.inference_mode(), call.ambient():
        for _ in range(3):
            call.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        for _ in range(CALLS):
            call.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
