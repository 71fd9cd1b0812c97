"""From energies in mel bands to what a model reads: logarithms with a floor 8 below the clip's largest."""

from __future__ import annotations

from torch import Tensor

LEAST = 1e-10
RANGE = 8.0


def levels(energy_BMF: Tensor) -> Tensor:
    """[B, M, F] of each clip by itself."""
    log_BMF = energy_BMF.clamp(min=LEAST).log10()
    floor_B11 = log_BMF.amax((1, 2), keepdim=True) - RANGE
    return (log_BMF.maximum(floor_B11) + 4) / 4
