"""What works on this machine, what does not, and how to get it: the checks of `fk doctor`, and the libraries
of production kernels.

A check runs what it speaks about where that takes seconds (Triton's interpreter, namespaces), else looks
for it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata

from fastkernels.layout import install_line

PROBE_TIMEOUT_S = 60
_CUDA_WHEELS = "https://download.pytorch.org/whl/cu130"
_INTERPRET = (
    "import torch; from fastkernels import kernels; "
    "x = torch.ones(2, 8); y = kernels.glu(x, 'silu', impl='triton'); "
    "torch.testing.assert_close(y, kernels.glu(x, 'silu', impl='reference'))"
)
_SEPARATE = """
import torch
from fastkernels.runner.sandbox.isolation import ALWAYS
from fastkernels.runner.worker.pool import Worker
from fastkernels.runner.worker.isolation_levels import with_device
level = with_device("cuda" if torch.cuda.is_available() else "cpu")
with Worker("probe", threads=1, **level._asdict()) as worker:
    worker.start("builtins:object")
    print(*ALWAYS, *worker.isolation)
    print(worker.stays_root)
"""
_THREADS = (
    "import torch; from fastkernels.measure.threads import seconds; "
    "threads = torch.get_num_threads(); seconds(threads); print(threads, seconds(1), seconds(threads))"
)
_FREE_CORES = "before Python starts: OMP_NUM_THREADS=(cores that are free), or OMP_WAIT_POLICY=PASSIVE"
_NAMESPACES = "allow unprivileged user namespaces for namespace and network"
_BUILT_FLASHINFER = "pip install flashinfer-jit-cache --index-url https://flashinfer.ai/whl/cu130"


@dataclass(frozen=True)
class Check:
    """`works`: whether it does here; `fix`: how to get it where it does not."""

    name: str
    works: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Library:
    """version: with the distribution's name; None where it is not installed, and `fix` says how to get it."""

    name: str
    version: str | None
    kernels: list[str]
    fix: str


def checks() -> Iterator[Check]:
    """What works needs no fix."""
    for check in _checks():
        yield replace(check, fix="") if check.works else check


def _checks() -> Iterator[Check]:
    yield from _cuda()
    yield _interpreter()
    yield _compiler()
    yield _threads()
    yield from _flashinfer()
    yield from _tools()
    yield _history()
    yield _cluster()
    yield _isolation()


def _cuda() -> Iterator[Check]:
    import torch

    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield Check("cuda", True, f"{names}, compute capability {major}.{minor}")
    else:
        reason = (
            "torch is built without CUDA" if torch.version.cuda is None else "no device that torch can use"
        )
        fix = f"an NVIDIA GPU and a CUDA build of torch: pip install torch --index-url {_CUDA_WHEELS}"
        yield Check("cuda", False, f"{reason}: tiny models on the CPU only", fix)
    has_triton, has_gpu = importlib.util.find_spec("triton") is not None, torch.cuda.is_available()
    detail = "compiles kernels for the GPU" if has_gpu else "needs a GPU; see triton interpreter"
    yield Check("triton", has_triton and has_gpu, detail, "" if has_triton else "pip install triton")


def _interpreter() -> Check:
    found = _probe(_INTERPRET, TRITON_INTERPRET="1")
    works = found.returncode == 0
    detail = "TRITON_INTERPRET=1 runs Triton kernels on the CPU, slowly" if works else _last_line(found)
    return Check("triton interpreter", works, detail, "pip install triton")


def _compiler() -> Check:
    wanted = (os.environ.get("CXX"), "c++", "g++", "clang++")
    found = next((path for name in wanted if name and (path := shutil.which(name))), None)
    what = f"{found}, for torch.compile and Triton's launcher"
    detail = what if found else "none on PATH: no torch.compile"
    return Check("compiler", found is not None, detail, "apt-get install g++, or set CXX")


def _threads() -> Check:
    """The threads of an operator wait for the last of them: one whose core is busy holds up all."""
    from fastkernels.measure.threads import MOST_SLOWER

    found = _probe(_THREADS)
    if found.returncode:
        return Check("cpu threads", False, _last_line(found), "a torch that can be imported")
    threads, alone, together = map(float, found.stdout.split())
    ratio = together / alone
    detail = f"{threads:.0f} of torch take {ratio:.1f} times as long as one for a small operator"
    works = ratio <= MOST_SLOWER
    why = "" if works else ", as where other work keeps a core busy"
    return Check("cpu threads", works, f"{detail}{why}", _FREE_CORES)


def libraries() -> list[Library]:
    """Those that implementations of kernels are named after, by name."""
    from fastkernels.kernels.choice import installed
    from fastkernels.registry import source

    found: dict[str, tuple[source.Implementation, list[str]]] = {}
    for kernel in source.kernels():
        for implementation in source.implementations(kernel):
            if implementation.requires:
                found.setdefault(implementation.name, (implementation, []))[1].append(kernel)
    owners = metadata.packages_distributions()
    made = []
    for name, (implementation, kernels) in sorted(found.items()):
        here = [p for wanted in implementation.requires for p in wanted.split(" or ") if installed(p)]
        version = _version(name, here[0], owners) if here else None
        extra = implementation.extra
        get = install_line(extra) if extra else f"pip install {implementation.requires[0]}"
        made.append(Library(name, version, sorted(set(kernels)), "" if here else get))
    return made


def _version(library: str, package: str, owners: Mapping[str, list[str]]) -> str:
    """Of the distribution that brought the package; of several the one that is called like the library."""
    found = owners.get(package.partition(".")[0], [])
    own = [name for name in found if name.replace("-", "_") == library]
    return f"{name} {metadata.version(name)}" if (name := next(iter(own or found), None)) else "installed"


def _flashinfer() -> Iterator[Check]:
    if importlib.util.find_spec("flashinfer") is not None:
        works = importlib.util.find_spec("flashinfer_jit_cache") is not None
        detail = (
            "built ahead" if works else "compiled on first use: 60 to 180 s for each variant of attention"
        )
        yield Check("flashinfer kernels", works, detail, _BUILT_FLASHINFER)


def _tools() -> Iterator[Check]:
    """Of fk profile, and of fk kernels --sanitize."""
    from fastkernels.profiling import tools

    for tool in (tools.NCU, tools.NSYS, tools.SANITIZER):
        found = tool.find()
        yield Check(
            tool.name.lower(), found is not None, found or f"{tool.program} is not here", tool.install
        )


def _history() -> Check:
    from fastkernels.settings import state_dir

    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return Check("mlflow", True, f"runs are logged to {uri.partition('://')[0]}:// (MLFLOW_TRACKING_URI)")
    folder = state_dir()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    works = os.access(existing, os.W_OK)
    detail = (
        f"runs are logged under {folder}" if works else f"{existing} cannot be written: runs are not logged"
    )
    return Check("mlflow", works, detail, "set FK_STATE_DIR to a folder of yours")


def _cluster() -> Check:
    works = importlib.util.find_spec("ray") is not None
    detail = f"ray {metadata.version('ray')}, for --cluster" if works else "Ray is not here, for --cluster"
    return Check("cluster", works, detail, install_line("cluster"))


def _isolation() -> Check:
    """Namespaces are the part that a machine may refuse; root then gives each candidate a user."""
    found = _probe(_SEPARATE)
    said, _, stays_root = found.stdout.partition("\n")
    levels = said.split()
    detail = f"workers are separated by {', '.join(levels)}" if levels else _last_line(found)
    if stays_root := stays_root.strip():
        detail += f"; candidates run as root: {stays_root}"
    return Check("isolation", "network" in levels, detail, _NAMESPACES)


def _probe(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; a process that hangs counts as one that failed."""
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            env={**os.environ, **variables},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([], 1, "", f"no answer in {PROBE_TIMEOUT_S} s")


def _last_line(found: subprocess.CompletedProcess[str]) -> str:
    lines = found.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {found.returncode}"
