"""ConvNeXt V2 in transformers, in full float32 as ours: tf32 is off on both sides, for convolutions as for
products. `channels-last` has filters and images with their channels last, which its norms and linear layers
ask for; a compiled graph lays them out itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, images, normalised


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "channels-last", "compiled", "compiled-channels-last")

    def __init__(self, machine: Machine) -> None:
        import torch
        import transformers

        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        fields = {k: v for k, v in machine.config.items() if k not in ("architectures", "model_type")}
        self._config = transformers.ConvNextV2Config(**fields)
        self._machine, self._device, self._dtype = machine, machine.device, getattr(torch, machine.dtype)
        make = transformers.ConvNextV2ForImageClassification._from_config
        self._model: Any = machine.filled(lambda: make(self._config, dtype=self._dtype))
        self.version = transformers.__version__

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        model = self._model
        is_last = setting.endswith("channels-last")
        model.to(memory_format=torch.channels_last if is_last else torch.contiguous_format)
        if setting.startswith("compiled"):
            model = torch.compile(model, mode="reduce-overhead")
        pixels_of_batch = normalised(images(workload, self._machine), self._device, self._dtype)

        @torch.inference_mode()
        def run() -> int:
            pixels_BCHW = pixels_of_batch().permute(0, 3, 1, 2)
            return len(model(pixels_BCHW if is_last else pixels_BCHW.contiguous()).logits)

        return run


_workloads: Any = partial(one_batch, "convnextv2")
COMPARISONS = [
    Comparison(
        "convnextv2",
        "transformers",
        Ours,
        Transformers,
        _workloads,
        bars={"classify-single-384": 1.5, "classify-384": 1.1},
    )
]
