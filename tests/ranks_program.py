"""Models of several ranks, in a process of one thread: there a rank is forked in a third of a second.

python -m tests.ranks_program FOLDER      prints what tests/unit/engine/test_ranks.py asserts, as JSON
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastkernels import LLM, SamplingParams
from fastkernels.errors import FastKernelsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.weights import export_weights

# On how many ranks beside one. The tiny models have two key and value heads: of four ranks two have the same.
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "llama": ({"model": "llama", "config": "tiny"}, (2, 4)),
    "biases and tied weights": ({"model": "llama", "config": "tiny-qwen2"}, (2,)),
    "slices of experts": ({"model": "mixtral", "config": "tiny"}, (2,)),
    "whole experts": ({"model": "mixtral", "config": "tiny", "enable_expert_parallel": True}, (4,)),
}
PROMPTS = [[3, 5, 7, 9], [100, 2, 3], [1] * 40, [7, 8]]
_EACH: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}
PARAMS = [
    SamplingParams(temperature=0.0, **_EACH),
    SamplingParams(temperature=1.0, seed=5, **_EACH),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=7, logprobs=3, **_EACH),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, seed=1, prompt_logprobs=2, **_EACH),
]

CANDIDATES = {
    "all_reduce": """
import torch.distributed as dist
from torch import nn
calls = 0
class AllReduce(nn.Module):
    def forward(self, input_):
        global calls
        calls += 1
        total = input_.clone()
        dist.all_reduce(total)
        return total
""",
    "sampling": """
from torch import nn
shapes = []
class Sampler(nn.Module):
    def forward(self, logits, temperature, top_k, top_p, seeds, positions):
        shapes.append(list(logits.shape))
        return logits.argmax(-1)
""",
    "rms_norm": """
import torch.distributed as dist
from ..L1.rms_norm__below import RMSNorm as Below
class RMSNorm(Below):
    def forward(self, x, residual=None):
        if dist.is_initialized() and dist.get_rank() == 1:
            raise ValueError("not on this rank")
        return super().forward(x, residual)
""",
}


def make(size: int, model: Any = "llama", layers: tuple[Path, ...] = (), **options: Any) -> LLM:
    options = {"device": "cpu", "max_num_seqs": 4, **options}
    return LLM(model, tensor_parallel_size=size, overlay=Overlay.over_baseline(layers), **options)


def texts(llm: LLM) -> list[list[int]]:
    return [one.outputs[0].token_ids for one in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


def of_case(case: dict[str, Any], sizes: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"texts": [], "weights_bytes": [], "processes": []}
    for size in (1, *sizes):
        llm = make(size, **case)
        found["texts"].append(texts(llm))
        found["weights_bytes"].append(llm.stats()["weights_bytes"])
        found["processes"].append(len(llm.ranks.pids))
        llm.shutdown()
    return found


def from_folder(folder: Path) -> list[list[list[int]]]:
    """Of a checkpoint, on one rank and on two."""
    source = find("mixtral", "tiny")
    model = load_model(source, Overlay.over_baseline(), torch.device("cpu"), torch.float32, 8)
    from safetensors.torch import save_file

    save_file(
        {name: x.contiguous().clone() for name, x in export_weights(model)}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(source.config))
    found = []
    for size in (1, 2):
        llm = make(size, str(folder), enable_expert_parallel=True)
        found.append(texts(llm))
        llm.shutdown()
    return found


def layer(folder: Path, name: str) -> Path:
    file = folder / name / "L1" / f"{name}.py"
    file.parent.mkdir(parents=True)
    file.write_text(CANDIDATES[name])
    return folder / name


def with_candidate(folder: Path, name: str) -> dict[str, Any]:
    llm = make(2, layers=(layer(folder, name),))
    said = texts(llm)
    module = llm.overlay.load(f"L1/{name}")
    found = {"texts": said, "calls": getattr(module, "calls", 0), "shapes": getattr(module, "shapes", [])}
    llm.shutdown()
    return found


def failing(folder: Path) -> dict[str, Any]:
    """A rank whose code raises, one that is killed, and what is left of each."""
    raising = make(2, layers=(layer(folder, "rms_norm"),))
    pids = raising.ranks.pids
    found = {"raising": outcome(lambda: texts(raising)), "raising left": left(pids)}
    llm = make(2)
    (pid,) = llm.ranks.pids
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)

    def kill(_: Any) -> None:
        if llm.ranks.pids:
            os.kill(pid, signal.SIGKILL)

    found["killed"] = outcome(lambda: llm.generate([[1, 2, 3]], params, use_tqdm=False, on_token=kill))
    found["killed left"] = left([pid])
    found["again"] = outcome(lambda: texts(llm))
    fresh = make(2)
    found["fresh"] = texts(fresh)
    fresh.shutdown()
    return found


def orphans() -> list[int]:
    """Of the ranks of a process that was killed, those that are there two seconds later."""
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(theirs, json.dumps(make(2).ranks.pids).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    pids = json.loads(os.read(ours, 1000))
    deadline = time.monotonic() + 2
    while left(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left(pids)


def ports() -> list[str]:
    """On which this process listens."""
    folder = Path("/proc/self/fd")
    mine = {os.readlink(link) for link in folder.iterdir() if link.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in mine]


def left(pids: list[int]) -> list[int]:
    """Those that are still there, or were not waited for."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def outcome(function: Any) -> list[Any]:
    try:
        function()
    except FastKernelsError as error:
        return [type(error).__name__, error.exit_code, str(error)]
    return ["nothing", 0, ""]


def refused() -> dict[str, list[Any]]:
    found = {
        "vocabulary": outcome(lambda: make(3)),
        "heads": outcome(lambda: make(8)),
        "experts": outcome(lambda: make(2, enable_expert_parallel=True)),
        "architecture": outcome(lambda: make(2, "gla")),
        "no number": outcome(lambda: make(0)),
    }
    first = make(2)
    found["second"] = outcome(lambda: make(2))
    first.shutdown()
    found["shut down"] = outcome(lambda: texts(first))
    return found


def main(folder: Path) -> None:
    (folder / "checkpoint").mkdir()
    report = {
        "cases": {name: of_case(*case) for name, case in CASES.items()},
        "all_reduce": with_candidate(folder, "all_reduce"),
        "sampling": with_candidate(folder, "sampling"),
        "refused": refused(),
        "failing": failing(folder),
        "orphans": orphans(),
        "in a group": dist.is_initialized(),
        "ports": ports(),
        # The last: transformers, which is asked for a folder's defaults, starts threads.
        "from a folder": from_folder(folder / "checkpoint"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
