"""One run of a whole model under torch.profiler, as a file that Perfetto opens, or under Nsight Systems.

python -m fastkernels.profiling.model_trace '{"model": ...}'       the process under Nsight Systems
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastkernels.errors import MachineError, UsageError
from fastkernels.loader.candidates import discover
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find
from fastkernels.profiling.tools import NSYS, under
from fastkernels.progress import Show
from fastkernels.records import Device, Size

MOST_ROWS = 12


@dataclass(frozen=True)
class ModelRequest:
    """What is run. Tokens: `requests` prompts of `input_len` random ids beside the images or clips of the
    first workload, each continued by `output_len`. Other models: a batch of their first workload."""

    model: str
    device: Device
    size: Size
    candidates: str | None = None
    requests: int = 4
    input_len: int = 64
    output_len: int = 16


@dataclass(frozen=True)
class Operation:
    """`share`: of the run's time on the device; on a CPU, on the host."""

    name: str
    calls: int
    device_us: float
    host_us: float
    share: float


def trace(request: ModelRequest, out: Path, show: Show) -> list[Operation]:
    """Run, write the trace, and return what took the most time itself: on the device; on a CPU, the host."""
    from torch.profiler import ProfilerActivity, profile

    show(f"loading {request.model}")
    run = loaded(request)
    show("warm-up")
    run()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if request.device == "cuda" else [])]
    show("profiled run")
    with profile(activities=activities, acc_events=True) as profiler:
        run()
        if request.device == "cuda":
            torch.cuda.synchronize()
    show(f"writing {out}")
    profiler.export_chrome_trace(str(out))
    by = "self_device_time_total" if request.device == "cuda" else "self_cpu_time_total"
    found = sorted(profiler.key_averages(), key=lambda of: -getattr(of, by))
    total = sum(getattr(of, by) for of in found) or 1.0
    return [
        Operation(
            of.key, of.count, of.self_device_time_total, of.self_cpu_time_total, getattr(of, by) / total
        )
        for of in found[:MOST_ROWS]
    ]


def with_nsys(request: ModelRequest, out: Path, show: Show) -> Path:
    """The report of Nsight Systems. MachineError where the tool is not there, or wrote none."""
    path = NSYS.path()
    show(f"Nsight Systems: {request.model}")
    options = ["--trace=cuda,nvtx,osrt", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    tool = [path, "profile", *options, "--force-overwrite=true", f"--output={out.with_suffix('')}"]
    done = under(tool, __name__, json.dumps(asdict(request)))
    report = out.with_suffix(".nsys-rep")
    if done.returncode or not report.is_file():
        last = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-4:])
        raise MachineError(f"nsys failed (exit status {done.returncode}):\n  {last}")
    return report


def loaded(request: ModelRequest) -> Callable[[], Any]:
    """What runs the model once."""
    layers: list[Path] = []
    if request.candidates is not None:
        sets = discover([request.candidates])
        if len(sets) != 1:
            names = ", ".join(each.name for each in sets)
            raise UsageError(
                f"--candidates {request.candidates}: {len(sets)} sets ({names}); name one of them"
            )
        layers = [*sets[0].layers]
    source = find(request.model, None, request.size)
    overlay = Overlay.over_baseline(layers)
    kind = source.architecture.correctness.kind
    return (_of_tokens if kind == "tokens" else _of_outputs)(request, overlay, source)


def _of_tokens(request: ModelRequest, overlay: Overlay, source: Any) -> Callable[[], Any]:
    from fastkernels import registry
    from fastkernels.engine.core.sampling_params import SamplingParams
    from fastkernels.engine.llm import LLM
    from fastkernels.runner.models.token_answers import TokenAnswers

    first = registry.workloads(source.architecture.workloads, size=request.size)[0]
    workload = first.model_copy(update={"requests": request.requests, "input_len": request.input_len})
    facts = source.architecture.correctness
    drawn = TokenAnswers(facts, request.size, source.config, random.Random(1)).inputs(workload)  # type: ignore[arg-type]
    asked = [
        {"prompt_token_ids": one.prompt, "multi_modal_data": _tensors(one.media)} if one.media else one.prompt
        for one in drawn
    ]
    llm = LLM(request.model, overlay=overlay, size=request.size, device=request.device)
    greedy = SamplingParams(temperature=0.0, max_tokens=request.output_len, ignore_eos=True, detokenize=False)
    return lambda: llm.generate(asked, greedy, use_tqdm=False)


def _tensors(drawn: Mapping[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in drawn.items()}


def _of_outputs(request: ModelRequest, overlay: Overlay, source: Any) -> Callable[[], Any]:
    from fastkernels import registry
    from fastkernels.engine.model import Model
    from fastkernels.runner.models.draws import Requests

    workload = registry.workloads(source.architecture.workloads, size=request.size)[0]
    face = Model(request.model, overlay=overlay, size=request.size, device=request.device)
    drawn = Requests(source.architecture.correctness.inputs, source.config, random.Random(1))
    asked = [_tensors(one) for one in drawn.of(workload.shapes, workload.batch)]  # type: ignore[union-attr]
    return lambda: face.run(asked)


if __name__ == "__main__":
    again = loaded(ModelRequest(**json.loads(sys.argv[1])))
    again()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    again()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
