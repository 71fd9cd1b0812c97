"""Programs that are no Python packages: where they lie, how to get them, and a process of ours under one."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastkernels.errors import MachineError

CALL_TIMEOUT_S = 600
_CUDA = "in the CUDA toolkit (https://developer.nvidia.com/cuda-downloads), or alone: apt-get install"


@dataclass(frozen=True)
class Tool:
    """`folders`: where it may lie beside CUDA's own, when it is not on PATH; with wildcards."""

    program: str
    name: str
    install: str
    folders: tuple[str, ...] = ()

    def find(self) -> str | None:
        places = [place for folder in ("/usr/local/cuda*/bin", *self.folders) for place in glob.glob(folder)]
        beside = os.pathsep.join(sorted(places, reverse=True))  # newer versions first
        return shutil.which(self.program) or shutil.which(self.program, path=beside)

    def path(self) -> str:
        """MachineError where it is not on this machine, with how to get it."""
        found = self.find()
        if found is None:
            raise MachineError(
                f"{self.name} is not here ({self.program} is not on PATH). It is {self.install}"
            )
        return found


NCU = Tool("ncu", "Nsight Compute", f"{_CUDA} cuda-nsight-compute-13-0", ("/opt/nvidia/nsight-compute/*",))
NSYS = Tool(
    "nsys", "Nsight Systems", f"{_CUDA} cuda-nsight-systems-13-0", ("/opt/nvidia/nsight-systems/*/bin",)
)
SANITIZER = Tool("compute-sanitizer", "Compute Sanitizer", f"{_CUDA} cuda-sanitizer-13-0")


def under(
    tool: Sequence[str],
    module: str,
    argument: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """`python -m module argument` under a tool: `[path, option, ...]`. MachineError past the time."""
    try:
        return subprocess.run(
            [*tool, sys.executable, "-m", module, argument],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        name = os.path.basename(tool[0])
        raise MachineError(f"{name}: no end within {timeout_s:.0f} s. Choose a smaller --case") from None
