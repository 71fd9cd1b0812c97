"""V-JEPA 2 in transformers: SDPA attention, videos normalised on the device, which is kind to it.

Its predictor reads on the host how many places there are, from the largest target: `compiled` breaks its
graph there. Both sides end with their rows on the device. It returns the features of every token, ours the
rows at the targets beside its own of every token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, normalised, requests
from references.transformers_lm import filled


class Transformers:
    settings: ClassVar[tuple[str, ...]] = ("default", "compiled")

    def __init__(self, machine: Machine) -> None:
        import transformers

        config = transformers.VJEPA2Config(**machine.config)
        self._machine = machine
        self._model = filled(transformers.VJEPA2Model._from_config, machine, config)
        self.version = transformers.__version__

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch

        torch.compiler.reset()
        model: Any = self._model
        if setting == "compiled":
            model = torch.compile(model, mode="reduce-overhead")
        batch, device = requests(workload, self._machine), self._machine.device
        dtype = getattr(torch, self._machine.dtype)
        videos = normalised([request["video"] for request in batch], device, dtype)
        skip = bool(batch[0]["skip_predictor"])
        target_BL = torch.stack([request["target_mask"] for request in batch]).to(device)
        places = torch.arange(workload.shapes[0]["tokens"], device=device)
        context_BL = torch.stack([places[~torch.isin(places, target_L)] for target_L in target_BL])

        @torch.inference_mode()
        def run() -> int:
            out = model(
                pixel_values_videos=videos().permute(0, 1, 4, 2, 3),
                context_mask=[context_BL],
                target_mask=[target_BL],
                skip_predictor=skip,
            )
            return len(out.last_hidden_state)

        return run


_workloads: Any = partial(one_batch, "vjepa2")
COMPARISONS = [
    Comparison(
        "vjepa2",
        "transformers",
        Ours,
        Transformers,
        _workloads,
        bars={"video-single": 1.5, "video-predictor": 1.1, "video-encoder": 1.1},
    )
]
