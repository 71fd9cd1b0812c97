"""3D Gaussian splatting in gsplat, whose CUDA kernels are compiled by its first call: that needs nvcc and
takes minutes. `--warm` does it beforehand; a folder that has them may be given as TORCH_EXTENSIONS_DIR.

Settings: every Gaussian of every camera (`default`), and those that are seen packed behind each other. gsplat
reads the number of pairs on the host in each call, so a call of it cannot be captured in a CUDA graph.

Both sides have the same scene and begin with cameras on the host; images end on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests


class Gsplat:
    settings: ClassVar[tuple[str, ...]] = ("default", "packed")

    def __init__(self, machine: Machine) -> None:
        import gsplat
        import torch

        if machine.device != "cuda":
            raise RuntimeError(
                "gsplat makes images on a GPU alone: its pixels have no implementation on a CPU"
            )
        from fastkernels import Model

        self._machine, self._device = machine, torch.device(machine.device)
        self.version, self._render = gsplat.__version__, gsplat.rasterization
        made = Model(
            machine.architecture, size=machine.size, device=machine.device, dtype=machine.dtype
        ).model
        opacities = made.logit_opacities.sigmoid()
        self._scene = (made.means, made.quats, made.log_scales.exp(), opacities, made.sh)

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        from fastkernels.nn.batching import sent

        config, asked = self._machine.config, requests(workload, self._machine)
        cameras = [torch.stack([one[name] for one in asked]) for name in ("viewmat", "intrinsics")]
        options = {"sh_degree": config["sh_degree"], "packed": setting == "packed"}

        @torch.inference_mode()
        def run() -> int:
            views = [sent(part, self._device) for part in cameras]
            images, _, _ = self._render(*self._scene, *views, config["width"], config["height"], **options)
            return len(images)

        return run


_workloads: Any = partial(one_batch, "gaussian_splatting")
COMPARISONS = [
    Comparison(
        "gaussian_splatting",
        "gsplat",
        Ours,
        Gsplat,
        _workloads,
        bars=dict.fromkeys(("render", "single_render"), 1.2),
    )
]
