"""SigLIP 2's vision tower in transformers: SDPA attention, images of one size without a mask.

Its processor works on the host; here the images are cut into patches on the device, which is kind to it. Its
positions read every image's grid on the host: `compiled` breaks its graph there, `compiled-whole` does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, images, on_device
from references.transformers_lm import filled


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled", "compiled-whole")

    def __init__(self, machine: Machine) -> None:
        import torch
        import transformers

        fields = machine.config
        self._config = transformers.Siglip2VisionConfig(**fields)
        self._machine, self._device, self._dtype = machine, machine.device, getattr(torch, machine.dtype)
        self._model = filled(transformers.Siglip2VisionModel._from_config, machine, self._config)
        self.version = transformers.__version__

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        model = self._model
        torch._dynamo.config.capture_scalar_outputs = setting == "compiled-whole"
        if setting != "default":
            model = torch.compile(model, mode="reduce-overhead")
        batch, size = images(workload, self._machine), self._config.patch_size
        height, width = (side // size for side in batch[0].shape[:2])
        # On the host: the model reads the shapes there.
        shapes_B2 = torch.tensor([[height, width]] * len(batch))

        @torch.inference_mode()
        def run() -> int:
            pixels = on_device(batch, self._device, self._dtype).div_(127.5).sub_(1)
            parts = pixels.unflatten(2, (width, size)).unflatten(1, (height, size)).transpose(2, 3)
            patches_BNP = parts.reshape(len(batch), height * width, -1)
            out = model(pixel_values=patches_BNP, pixel_attention_mask=None, spatial_shapes=shapes_B2)
            return len(out.pooler_output)

        return run


_workloads: Any = partial(one_batch, "siglip2")
COMPARISONS = [
    Comparison(
        "siglip2",
        "transformers",
        Ours,
        Transformers,
        _workloads,
        bars=dict.fromkeys(("default-res", "high-res", "single-image", "batch-8"), 1.15),
    )
]
