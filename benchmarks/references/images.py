"""Models that see images: our side of every comparison of them. Both sides begin with the same uint8 images
on the host and end with answers on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from fastkernels.registry.workloads import ImageWorkload
from references.base import Machine

SEED = 20


def images(workload: ImageWorkload) -> list[Any]:
    """A batch, uint8 [H, W, 3] each."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    sizes = [workload.resolutions[i % len(workload.resolutions)] for i in range(workload.batch)]
    return [torch.randint(0, 256, (*size, 3), generator=generator, dtype=torch.uint8) for size in sizes]


class Ours:
    settings: ClassVar[tuple[str, ...]] = ("engine",)

    def __init__(self, machine: Machine) -> None:
        from fastkernels.engine.image_model import ImageModel

        from fastkernels import __version__
        from fastkernels.engine.detector import Detector
        from fastkernels.engine.encoder import Encoder

        faces: dict[str, type[ImageModel]] = {face.answer: face for face in (Encoder, Detector)}
        from fastkernels import registry

        face = faces[registry.architecture(machine.architecture).correctness.kind]
        self._model = face(
            machine.architecture, size=machine.size, device=machine.device, dtype=machine.dtype
        )
        self.version = __version__

    def prepare(self, workload: ImageWorkload, setting: str) -> Callable[[], int]:
        batch = images(workload)
        return lambda: len(self._model.run(batch))


def on_device(batch: list[Any], device: str, dtype: Any) -> Any:
    """[B, H, W, C], sent as our engine sends images, and converted there."""
    import torch

    from fastkernels.nn.batching import sent_together

    return sent_together(batch, torch.device(device)).to(dtype)
