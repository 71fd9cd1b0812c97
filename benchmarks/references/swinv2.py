"""Swin V2 in timm with strict_img_size=False: windows and shifts are those of the configured size, masks and
position biases are made in each pass.

The package needs operators of torchvision's, which are declared where a CPU build has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, images, normalised
from references.yolov10 import declare_operators


class Timm:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        if machine.device == "cpu":
            declare_operators()
        import timm
        from timm.models.swin_transformer_v2 import SwinTransformerV2

        fields = {k: v for k, v in machine.config.items() if k not in ("architectures", "model_type")}
        self._machine = machine
        self._model: Any = machine.filled(lambda: SwinTransformerV2(**fields, strict_img_size=False))
        self._model.to(machine.device)
        self.version = timm.__version__

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        model, device, dtype = self._model, self._machine.device, getattr(torch, self._machine.dtype)
        if setting == "compiled":
            model = torch.compile(model, mode="reduce-overhead")
        pixels_of_batch = normalised(images(workload, self._machine), device, dtype)

        @torch.inference_mode()
        def run() -> int:
            return len(model(pixels_of_batch().permute(0, 3, 1, 2).contiguous()))

        return run


_workloads: Any = partial(one_batch, "swinv2")
COMPARISONS = [
    Comparison(
        "swinv2",
        "timm",
        Ours,
        Timm,
        _workloads,
        bars={"classify-single-192": 1.5, "classify-192": 1.1},
    )
]
