"""YOLOv10 in ultralytics: its DetectionModel, norms fused, filters channels last, the head without
suppression of boxes.

Timed to its [B, 300, 6]; what is dropped below a score afterwards, on the host, is left out, which is kind to
it. The package is under the AGPL: it is never needed by the project itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, images, on_device


class Ultralytics:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        import torch

        os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())  # it writes settings when imported
        if machine.device == "cpu":
            declare_operators()
        import ultralytics
        from ultralytics.nn.tasks import DetectionModel, yaml_model_load

        config = machine.config
        scale = [config[name] for name in ("depth_multiple", "width_multiple", "max_channels")]
        layout = {**yaml_model_load("yolov10n.yaml"), "nc": config["num_classes"], "scales": {"n": scale}}
        self._model: Any = DetectionModel({**layout, "scale": "n"}, verbose=False)
        self._model.model[-1].end2end = True
        self._machine = machine
        self._dtype, self._device = getattr(torch, machine.dtype), machine.device
        self._model = self._model.eval().fuse(verbose=False).to(self._device, self._dtype)
        self._model = self._model.to(memory_format=torch.channels_last).requires_grad_(False)
        self.version = ultralytics.__version__

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
            boxes_BK6 = found[0] if isinstance(found, tuple) else found
            assert boxes_BK6.dim() == 3, boxes_BK6.shape
            assert boxes_BK6.shape[2] == 6, boxes_BK6.shape
            return len(boxes_BK6)

        return run


def declare_operators() -> None:
    """torchvision's wheel of the package index has no operators beside a CPU build of PyTorch; declared ones
    suffice to import it, and nothing here calls them."""
    import torch

    signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + signature)
    _declared.append(library)


_declared: list[Any] = []  # a library's declarations end with it
_workloads: Any = partial(one_batch, "yolov10")
COMPARISONS = [
    Comparison(
        "yolov10",
        "ultralytics",
        Ours,
        Ultralytics,
        _workloads,
        bars={"detect-single": 1.5, "detect-batch-32": 1.1},
    )
]
