"""A hash-grid radiance field in plain PyTorch, because its library is built from CUDA sources alone: from
cameras on the host to images on the device. Rays march and are blended by our kernels on both sides: the
comparison is of the field.

The table is read by an embedding bag of the eight corners, networks are linear layers. Its settings: as it
is, and with the field compiled. How many rays go on is read on the host in each round, as the library's
tracer does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, ClassVar

from fastkernels.registry.workloads import ProgramWorkload
from references.base import Comparison, Machine, one_batch
from references.programs import Ours, requests


def plain_field(network: Any) -> Any:
    """The field of our parameters: positions [M, 3] and directions [M, 3] -> logits [M, 4]."""
    import torch
    from torch.nn import functional as F

    from fastkernels.kernels.spherical_harmonics import basis

    table, levels = network.pos_encoding.hash_table, network.pos_encoding.levels
    there = {"device": table.device}
    scale_L1 = torch.tensor(levels.scales, **there)[:, None]
    side_L1 = torch.tensor(levels.resolutions, **there)[:, None]
    first_L1 = torch.tensor(levels.offsets[:-1], **there)[:, None]
    rows_L1 = torch.tensor(levels.offsets, **there).diff()[:, None]
    after_83 = torch.tensor(list(product((0, 1), repeat=3)), **there)
    perceptrons = [list(part.weights) for part in (network.density_network, network.rgb_network)]

    def through(x: Any, weights: list[Any]) -> Any:
        for weight in weights[:-1]:
            x = F.relu(F.linear(x, weight))
        return F.linear(x, weights[-1])

    def field(x_M3: Any, d_M3: Any) -> Any:
        p_ML3 = x_M3[:, None] * scale_L1 + 0.5
        g_ML3 = p_ML3.floor()
        part_ML13 = (p_ML3 - g_ML3)[:, :, None]
        weight_ML8 = torch.where(after_83 == 1, part_ML13, 1 - part_ML13).prod(-1)
        x, y, z = (g_ML3.long()[:, :, None] + after_83).unbind(-1)
        hashed = (x ^ y * 2654435761 ^ z * 805459861) & 0xFFFFFFFF
        counted = x + side_L1 * (y + side_L1 * z)
        row_ML8 = torch.where(side_L1**3 <= rows_L1, counted, hashed) % rows_L1 + first_L1
        bags = F.embedding_bag(
            row_ML8.flatten(0, 1), table, mode="sum", per_sample_weights=weight_ML8.flatten(0, 1)
        )
        h = through(bags.view(len(x_M3), -1), perceptrons[0])
        seen = torch.stack(basis(*d_M3.unbind(-1), 3), -1)
        return torch.cat((through(torch.cat((h, seen), -1), perceptrons[1]), h[:, :1]), -1)

    return field


class Plain:
    settings: ClassVar[tuple[str, ...]] = ("eager", "compiled")

    def __init__(self, machine: Machine) -> None:
        import torch

        from fastkernels import Model

        self._machine, self._device = machine, torch.device(machine.device)
        self.version = str(torch.__version__)
        self._model = Model(
            machine.architecture, size=machine.size, device=machine.device, dtype=machine.dtype
        ).model
        self._field = plain_field(self._model.tracer.network)

    def prepare(self, workload: ProgramWorkload, setting: str) -> Callable[[], int]:
        import torch
        from torch import nn

        from fastkernels.nn.batching import sent

        asked = requests(workload, self._machine)
        cameras = [torch.stack([one[name] for one in asked]) for name in ("viewmat", "intrinsics")]
        field = self._field if setting == "eager" else torch.compile(self._field, dynamic=True)

        class Network(nn.Module):
            def forward(self, positions: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
                return field(positions, directions)

        self._model.tracer.network = Network()

        @torch.inference_mode()
        def run() -> int:
            return len(self._model(*(sent(part, self._device) for part in cameras)))

        return run


_workloads: Any = partial(one_batch, "instant_ngp")
COMPARISONS = [
    Comparison(
        "instant_ngp",
        "its",
        Ours,
        Plain,
        _workloads,
        bars=dict.fromkeys(("render", "single_render"), 1.2),
    )
]
