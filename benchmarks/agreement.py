"""How often a half-precision model chooses the token that its float32 reference chooses: ours, transformers'.

    python benchmarks/agreement.py llama --out benchmarks/h200/agreement_llama.json

One set of random weights, in bfloat16, in a folder as transformers saves it. Random prompts, continued by
random ids that are fed whatever was chosen (teacher forcing): all three see the same context everywhere.

    transformers float32    the choices to agree with, computed from the same weights
    transformers bfloat16   one forward pass
    ours                    prefill and decode steps of the engine, in graphs

`difference` is ours minus transformers' over positions, with its standard error: rounding decides near-ties
of a random model's 128,256 logits, so that no half-precision model agrees everywhere.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from comparison import finish, in_a_process, write
from references.base import Machine
from references.language import Prompts
from references.transformers_lm import causal_lm

SEED = 20
SHAPES = {"full": (128, 128, 128), "tiny": (8, 24, 16)}  # requests, prompt, forced ids
BATCH = 8  # sequences of a forward pass of transformers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture")
    parser.add_argument("--size", choices=list(SHAPES), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scratch", type=Path, help="where the weights are saved; default: temporary files")
    parser.add_argument("--side", choices=["transformers", "fastkernels"], help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    machine = Machine(arguments.architecture, arguments.size, arguments.device)
    if arguments.side:
        side = _reference if arguments.side == "transformers" else _ours
        finish(arguments.result, side(machine, arguments.scratch))
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        flags = [arguments.architecture, "--size", arguments.size, "--device", arguments.device]
        found = {
            side: in_a_process(__file__, [*flags, "--scratch", folder, "--side", side])
            for side in ("transformers", "fastkernels")
        }
    write(_report(machine, found["transformers"], found["fastkernels"]), arguments.out)


def _report(machine: Machine, theirs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    from fastkernels.measure.environment import environment

    right = theirs["float32"]
    same = {
        "fastkernels": [a == b for a, b in zip(ours["choices"], right, strict=True)],
        "transformers": [a == b for a, b in zip(theirs["half"], right, strict=True)],
    }
    differences = [a - b for a, b in zip(same["fastkernels"], same["transformers"])]
    return {
        "kind": "agreement",
        "architecture": machine.architecture,
        "dtype": machine.dtype,
        "positions": len(right),
        "agreement": {side: statistics.fmean(hits) for side, hits in same.items()},
        "difference": statistics.fmean(differences),
        "standard_error": statistics.stdev(differences) / len(differences) ** 0.5,
        "versions": {"fastkernels": ours["version"], "transformers": theirs["version"]},
        "environment": environment(machine.device).model_dump(),
    }


def _texts(machine: Machine, vocabulary: int) -> tuple[Prompts, Prompts]:
    """Prompts, and what is fed after each."""
    requests, prompt, forced = SHAPES[machine.size]
    rng = random.Random(SEED)
    drawn = [[rng.randrange(vocabulary) for _ in range(prompt + forced)] for _ in range(requests)]
    return [ids[:prompt] for ids in drawn], [ids[prompt:] for ids in drawn]


def _reference(machine: Machine, folder: Path) -> dict[str, Any]:
    import transformers

    model = causal_lm(machine)
    model.save_pretrained(folder)
    half = _choices(model, machine)
    return {
        "half": half,
        "float32": _choices(model.float(), machine),
        "version": transformers.__version__,
    }


def _choices(model: Any, machine: Machine) -> list[int]:
    import torch

    prompts, forced = _texts(machine, model.config.vocab_size)
    ids_RT = torch.tensor([a + b for a, b in zip(prompts, forced)], device=machine.device)
    first, found = len(prompts[0]) - 1, []
    for ids_BT in ids_RT.split(BATCH):
        with torch.inference_mode():
            logits_BTV = model(ids_BT).logits[:, first:-1]
        found += logits_BTV.argmax(-1).flatten().tolist()
    return found


def _ours(machine: Machine, folder: Path) -> dict[str, Any]:
    from fastkernels import LLM, SamplingParams, __version__

    llm = LLM(str(folder), dtype=machine.dtype, device=machine.device)
    prompts, forced = _texts(machine, llm.vocabulary)
    params = SamplingParams(temperature=0.0, max_tokens=len(forced[0]), ignore_eos=True)
    outputs = llm.generate(prompts, params, forced=forced)
    choices = [token for output in outputs for token in output.outputs[0].token_ids]
    return {"choices": choices, "version": __version__}


if __name__ == "__main__":
    main()
