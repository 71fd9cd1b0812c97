"""Where a report was made: machine, versions, revision. Nothing here fails; what cannot be found out is
None."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path

from fastkernels import __version__
from fastkernels.errors import MachineError
from fastkernels.records import Device, Environment

_LIBRARIES = (
    "transformers",
    "numpy",
    "mlflow",
    "flashinfer-python",
    "flash-attn",
    "fla-core",
    "safetensors",
    "vllm",
    "sglang-kernel",
    "sgl-kernel",
    "quack-kernels",
    "liger-kernel",
)
_GIB = 1 << 30
_GIT_TIMEOUT_S = 5


def environment(device_type: Device) -> Environment:
    """The record for a report. Imports torch only for CUDA, to ask the driver for the device's name."""
    cpu = cpu_name()
    device, cuda = cpu, None
    if device_type == "cuda":
        import torch

        device, cuda = torch.cuda.get_device_name(), torch.version.cuda
    return Environment(
        device=device,
        device_type=device_type,
        host_cpu=cpu,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        python=platform.python_version(),
        torch=version("torch") or "unknown",
        triton=version("triton"),
        cuda=cuda,
        driver=_driver() if device_type == "cuda" else None,
        libraries={name: found for name in _LIBRARIES if (found := version(name))},
        fastkernels=__version__,
        git_revision=git_revision(Path(__file__).resolve().parent),
        isolation=(),  # for whoever starts workers to say
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def require_device(wanted: Device | None = None) -> Device:
    """The device to measure on: the wanted one, else CUDA where there is one. MachineError for CUDA without
    CUDA."""
    if wanted == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        built = torch.version.cuda
        why = (
            "no GPU or no driver is visible" if built else f"torch {torch.__version__} is built without CUDA"
        )
        raise MachineError(f"--device cuda: {why}. See: fk doctor")
    return "cpu"


@cache
def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """`Intel(R) Xeon(R) ...`; the architecture where the kernel tells no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or platform.machine()


def git_revision(folder: Path) -> str | None:
    """The commit of the checkout that holds this package, `+changes` where it is not clean; None outside a
    checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    tracked = _git(folder, "ls-files", "--error-unmatch", __file__)
    if commit is None or tracked is None:  # an installed package inside somebody else's repository
        return None
    return f"{commit}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _driver() -> str | None:
    """The kernel module's version, which needs no NVML: `580.159`."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return None
    return next((word for word in words if word.replace(".", "").isdigit() and "." in word), None)
