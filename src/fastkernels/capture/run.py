"""A workload through the engine, into a golden folder.

    capture = run_capture(CaptureRequest(model="path/to/folder", out="golden"))

Everything runs eagerly: a replayed graph calls no module. Continuations are greedy and of exact length.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

from fastkernels import registry
from fastkernels.capture.calls import Calls
from fastkernels.capture.routers import RouterWatch
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.llm import LLM
from fastkernels.errors import RequestError, UsageError
from fastkernels.layout import shown
from fastkernels.loader import golden
from fastkernels.loader.weights import ModelSource, find
from fastkernels.measure.environment import environment, require_device
from fastkernels.progress import Progress, Show
from fastkernels.records import RANDOM_IDS, Capture, Device, Record, Size, default_size
from fastkernels.registry.schema import Architecture
from fastkernels.registry.workloads import TokenWorkload
from fastkernels.report import files
from fastkernels.settings import resolve


class CaptureRequest(Record):
    """What `fk capture` was asked. None: decided from the machine (`parse`) or the architecture."""

    model: str
    out: str
    workload: str | None = None  # the architecture's first
    requests: int = 32  # most of the workload's that are served
    prompts: str | None = None  # a file with a prompt in each line; None: random ids
    size: Size | None = None
    device: Device | None = None
    dtype: str | None = None
    seed: int = 0
    tokens: int = 8192  # most of each phase that are kept
    hidden_tokens: int = 64  # of these, with hidden states

    @classmethod
    def parse(cls, **flags: Any) -> CaptureRequest:
        """From a command's flags, with the user's settings behind them. MachineError for CUDA without
        CUDA."""
        settings = resolve(device=flags.pop("device"), size=flags.pop("size"))
        device = require_device(settings.device_asked)
        return cls(**flags, device=device, size=settings.size_asked or default_size(device))


def run_capture(request: CaptureRequest, show: Show = lambda step: None) -> Capture:
    """Run, record, write. UsageError and its kin for what cannot be captured, before anything is loaded."""
    device = require_device(request.device)
    size = request.size or default_size(device)
    files.require_new_folder(request.out, "--out")
    source = find(request.model, None, size)
    _require_choices(source.architecture)
    workload = _workload(source.architecture, request.workload, size)
    texts, prompts_name = _texts(request.prompts)
    show(f"loading {request.model}")
    llm = LLM(
        request.model,
        size=size,
        device=device,
        dtype=request.dtype or "auto",
        seed=request.seed,
        enforce_eager=True,
    )
    prompts = _prompts(llm, workload, request, texts)
    calls, watch = (
        Calls(llm.model, llm.overlay),
        RouterWatch(llm.model, request.tokens, request.hidden_tokens),
    )
    greedy = SamplingParams(
        temperature=0.0, max_tokens=workload.output_len, ignore_eos=True, detokenize=False
    )
    with calls.attached(), watch.attached():
        llm.generate(
            prompts,
            greedy,
            use_tqdm=False,
            on_progress=lambda done, all: show(Progress(done, all, "requests")),
        )
    capture = Capture(
        schema=1,
        model=shown(request.model),
        architecture=source.architecture.id,
        weights="random" if source.folder is None else "checkpoint",
        revision=_revision(source),
        config=source.config,
        dtype=str(llm.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        seed=request.seed,
        workload=workload.name,
        requests=len(prompts),
        output_len=workload.output_len,
        prompts=prompts_name,
        top_k=watch.top_k,
        experts=watch.experts,
        layers=watch.layers,
        tokens=watch.tokens(),
        digest="",
        environment=environment(device),
    )
    show(f"writing {request.out}")
    return golden.write(Path(request.out), capture, watch.tensors(), calls.lines())


def chooses(architecture: Architecture) -> bool:
    """Whether some task of the architecture gets the tokens' choice of experts, as the registry says."""
    tasks = [registry.task(task) for task in registry.tasks_of(architecture)]
    return any(draw.draw.startswith("routing.") for entry in tasks for draw in entry.draws.values())


def _require_choices(architecture: Architecture) -> None:
    if not chooses(architecture):
        others = ", ".join(entry.id for entry in registry.architectures() if chooses(entry))
        raise UsageError(
            f"{architecture.id}: no task of it depends on what the data choose, so there is nothing to "
            f"capture. Architectures with such tasks: {others} (--model)"
        )


def _workload(architecture: Architecture, name: str | None, size: Size) -> TokenWorkload:
    workload = registry.workloads([name or architecture.workloads[0]], size)[0]
    if not isinstance(workload, TokenWorkload) or not workload.input_len:
        raise UsageError(
            f"{workload.name}: not a workload of prompts and tokens, which a capture needs (--workload)"
        )
    if workload.output_len < 2:
        raise UsageError(
            f"{workload.name}: its only token of output comes with the prompt, and a capture needs decode "
            "steps as well (--workload)"
        )
    return workload


def _texts(path: str | None) -> tuple[list[str] | None, str]:
    """The prompts of a file, and how the provenance calls them."""
    if path is None:
        return None, RANDOM_IDS
    try:
        content = Path(path).read_bytes()
        texts = [line for line in content.decode("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"--prompts {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts {path}: not UTF-8 text") from error
    if not texts:
        raise UsageError(f"--prompts {path}: no prompt in it; one in each line is expected")
    return texts, f"{Path(path).name} (SHA-256 {hashlib.sha256(content).hexdigest()[:16]})"


def _prompts(
    llm: LLM, workload: TokenWorkload, request: CaptureRequest, texts: list[str] | None
) -> list[Any]:
    """Texts as long as they are; random ids of the workload's length."""
    count = min(request.requests, workload.requests)
    if texts is not None:
        if llm.text.tokenizer is None:
            raise RequestError(
                f"--prompts {request.prompts} needs a tokenizer, and {request.model} has none. "
                "Give a folder that has one, or leave --prompts out (random ids)"
            )
        return texts[:count]
    rng = random.Random(request.seed)
    return [[rng.randrange(llm.vocabulary) for _ in range(workload.input_len)] for _ in range(count)]


def _revision(source: ModelSource) -> str | None:
    """The commit of a folder in the Hugging Face cache: models--X--Y/snapshots/COMMIT."""
    folder = source.folder and source.folder.resolve()
    return folder.name if folder and folder.parent.name == "snapshots" else None
