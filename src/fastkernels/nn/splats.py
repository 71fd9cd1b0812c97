"""Trained Gaussians as their parameters: what random ones are like, and the two kinds of checkpoints.

gsplat's trainer   means [N, 3], scales [N, 3] (logarithms), quats [N, 4], opacities [N] (logits),
                   sh0 [N, 1, 3], shN [N, K - 1, 3]
a PLY file         a column [N] for each number of a Gaussian, as Inria's trainer names them; f_rest has
                   the coefficients of red first, then those of green, then of blue
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.nn.misfits import Misfits
from fastkernels.nn.weight_map import WeightMap

# Training begins with sizes as the distance of neighbours is, N^(-1/3) in a cube of side 1, and ends with
# smaller ones and a few larger; logits of opacities end anywhere between nothing and all.
_LOG_SIZES, _LOGITS = (-2.2, 0.3), (-4.0, 4.0)
_NORMAL = ("nx", "ny", "nz")  # of a PLY file, unused


def splat_range(name: str, parameter: Tensor) -> tuple[float, float] | None:
    """Between what random values of a Gaussian's size or opacity lie; None of any other parameter."""
    if name.endswith("log_scales"):
        spacing = -torch.tensor(float(len(parameter)), device="cpu").log().item() / 3
        return spacing + _LOG_SIZES[0], spacing + _LOG_SIZES[1]
    return _LOGITS if name.endswith("logit_opacities") else None


def splat_map(sh_degree: int) -> WeightMap:
    names = {
        "means": "means",
        "scales": "log_scales",
        "quats": "quats",
        "opacities": "logit_opacities",
        "sh": "sh",
    }
    return WeightMap(names, folding=Splats((sh_degree + 1) ** 2))


@dataclass(frozen=True)
class Splats:
    """coefficients: of each colour."""

    coefficients: int

    def fold(self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        """Columns and parts of colours put together; of what is missing the others' length is known."""
        known = {column for columns in self.columns.values() for column in columns}
        columns: dict[str, Tensor] = {}
        parts: dict[str, Tensor] = {}
        for name, tensor in weights:
            if name in known:
                columns[name] = tensor[:]
            elif name in ("sh0", "shN"):
                parts[name] = tensor[:]
            elif name not in _NORMAL:
                yield name, tensor
        if parts:
            yield "sh", torch.cat([parts[name] for name in sorted(parts)], 1)
        if columns:
            yield from self._stacked(columns, misfits)

    @property
    def columns(self) -> dict[str, list[str]]:
        """Of a PLY file, for each parameter; colours coefficient by coefficient, red, green and blue."""
        rest = self.coefficients - 1
        return {
            "means": ["x", "y", "z"],
            "scales": [f"scale_{i}" for i in range(3)],
            "quats": [f"rot_{i}" for i in range(4)],
            "opacities": ["opacity"],
            "sh": [f"f_dc_{c}" for c in range(3)]
            + [f"f_rest_{c * rest + k}" for k in range(rest) for c in range(3)],
        }

    def _stacked(self, found: dict[str, Tensor], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        some = next(iter(found.values()))
        for parameter, columns in self.columns.items():
            for column in columns:
                if column not in found:
                    misfits.lacks(column, some.shape)
            whole = torch.stack([found.get(column, torch.zeros_like(some)) for column in columns], -1)
            if parameter == "sh":
                whole = whole.unflatten(-1, (-1, 3))
            yield parameter, whole[:, 0] if parameter == "opacities" else whole
