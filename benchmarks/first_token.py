"""Seconds from the start of a process to our engine's first token, caches empty, and as that run left them.

    python benchmarks/first_token.py --out first_token_llama.json
    python benchmarks/first_token.py --size tiny --device cpu --out a.json

Each run is a fresh process that imports, makes `LLM(...)` with random weights and a user's settings, and asks
it for one token of one prompt of 16. The caches of compiled kernels (ours, Triton's, torch's, FlashInfer's,
the driver's) lie in a folder made for this: `cold` finds it empty, `warm` finds what `cold` left. A process
before both imports and starts the device, so that the disk is not measured.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from comparison import finish, in_a_process, write
from references.base import Machine
from references.language import Ours

# Variable: folder of the cache in ours. Kernels in CUDA C++ lie in Triton's.
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "driver",
    "XDG_CACHE_HOME": "others",
}
PROMPT = 16
RUNS = ("cold", "warm")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="llama", help="of its default configuration")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--run", choices=["imports", *RUNS], help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    machine = Machine(arguments.architecture, arguments.size, arguments.device)
    if arguments.run == "imports":
        finish(arguments.result, _environment(arguments.device))
        return
    if arguments.run:
        finish(arguments.result, _seconds(machine, arguments.began))
        return
    flags = [f"--{name}={getattr(arguments, name)}" for name in ("architecture", "size", "device")]
    report: dict[str, Any] = {
        "kind": "first_token",
        "architecture": arguments.architecture,
        "size": arguments.size,
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({name: str(Path(folder) / cache) for name, cache in CACHES.items()})

        def in_a_run(name: str) -> dict[str, Any]:
            return in_a_process(__file__, [*flags, "--run", name, f"--began={time.time()}"])

        environment = in_a_run("imports")
        for name in RUNS:
            sizes = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
            report[name] = {"found_cache_mb": sum(sizes) / 1e6, **in_a_run(name)}
            print(name, report[name], file=sys.stderr, flush=True)
    write(report | environment, arguments.out)


def _environment(device: Any) -> dict[str, Any]:
    from fastkernels import LLM  # noqa: F401
    from fastkernels.measure.environment import environment

    return {"environment": environment(device).model_dump(mode="json")}


def _seconds(machine: Machine, began: float) -> dict[str, float]:
    """Since the parent started this process."""
    from fastkernels import LLM  # noqa: F401

    imported = time.time()
    engine = Ours(machine)
    made = time.time()
    rng = random.Random(0)
    (output,) = engine.generate([[rng.randrange(engine.vocabulary) for _ in range(PROMPT)]], 1)
    assert len(output.outputs[0].token_ids) == 1
    return {
        "imported_s": imported - began,
        "engine_s": made - began,
        "first_token_s": time.time() - began,
    }


if __name__ == "__main__":
    main()
