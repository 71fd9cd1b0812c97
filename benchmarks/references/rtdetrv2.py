"""RT-DETRv2 in transformers, filters channels last, with what makes detections of its boxes on the device.

Timed to the best class of the 100 best queries; what is dropped below a score afterwards, on the host, is
left out, which is kind to it. Its norms stand as they are: transformers folds none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, images, on_device

PLACES = 100


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        import torch
        import transformers

        known = {k: v for k, v in machine.config.items() if k not in ("architectures", "model_type", "dtype")}
        backbone = transformers.RTDetrResNetConfig(**known.pop("backbone_config"))
        self._config = transformers.RTDetrV2Config(**known, backbone_config=backbone)
        self._machine, self._device, self._dtype = machine, machine.device, getattr(torch, machine.dtype)
        make = transformers.RTDetrV2ForObjectDetection._from_config
        self._model: Any = machine.filled(lambda: make(self._config, dtype=self._dtype))
        self._model.to(memory_format=torch.channels_last)
        self.version = transformers.__version__

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        model = self._model
        if setting == "compiled":
            model = torch.compile(model, mode="reduce-overhead")
        batch = images(workload, self._machine)

        @torch.inference_mode()
        def run() -> int:
            pixels_BHWC = on_device(batch, self._device, self._dtype).div_(255)
            found = model(pixels_BHWC.permute(0, 3, 1, 2))
            scores_BQ, _ = found.logits.sigmoid().max(-1)
            best_BK = scores_BQ.topk(min(PLACES, scores_BQ.shape[1])).indices
            boxes_BK4 = found.pred_boxes.gather(1, best_BK[..., None].expand(-1, -1, 4))
            return len(boxes_BK4)

        return run


_workloads: Any = partial(one_batch, "rtdetrv2")
COMPARISONS = [
    Comparison(
        "rtdetrv2",
        "transformers",
        Ours,
        Transformers,
        _workloads,
        bars={"detect-single": 1.5, "detect-batch-32": 1.1},
    )
]
