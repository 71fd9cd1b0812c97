"""Ternary weights in checkpoints, in models and at random: packed four a byte, with a scale for each matrix.

A checkpoint of BitNet holds packed matrices (uint8) and their scales, or ordinary matrices that inference
makes ternary (kernels/ternary.py): these are packed while they are read, and their scales added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.kernels import ternary
from fastkernels.nn.misfits import Misfits

WEIGHT, SCALE = "weight", "weight_scale"
BYTES = 3**ternary.PER_BYTE  # that hold four values
# Of random values, each as likely as the others.
VARIANCE = 2 / 3


@dataclass(frozen=True)
class Ternary:
    """projections: the modules, by their own name, whose matrices are ternary. inverted: scales are what
    results are divided by, not what they are multiplied by."""

    projections: tuple[str, ...]
    inverted: bool = False

    def fold(self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a checkpoint with packed matrices and scales to multiply by. `misfits` gets what no
        ternary matrix has: a code that stands for no weight, a scale that is no positive number."""
        for name, tensor in weights:
            module, _, kind = name.rpartition(".")
            if module.rpartition(".")[2] not in self.projections or kind not in (WEIGHT, SCALE):
                yield name, tensor
            elif kind == SCALE:
                _check_scale(name, tensor, misfits)
                yield name, 1 / tensor.float() if self.inverted else tensor
            elif tensor.is_floating_point() and tensor.dim() == 2 and len(tensor) % ternary.PER_BYTE == 0:
                packed, scale = ternary.ternarised(tensor)
                _check_scale(name, scale, misfits)
                yield name, packed
                yield f"{module}.{SCALE}", scale
            else:
                if tensor.dtype == torch.uint8 and not ternary.is_packed(tensor):
                    misfits.misshapen.append(
                        f"misshapen   {name} holds the code 3, which stands for no weight"
                    )
                yield name, tensor


def _check_scale(name: str, scale: Tensor, misfits: Misfits) -> None:
    if not bool(((scale > 0) & scale.isfinite()).all()):
        misfits.misshapen.append(f"misshapen   {name}: its scale is no positive number")


def is_ternary(name: str, parameter: Tensor) -> bool:
    """Whether a model's parameter holds packed ternary weights, a matrix: codes of MXFP4 are stacks."""
    is_matrix = parameter.dtype == torch.uint8 and parameter.dim() == 2
    return is_matrix and name.rpartition(".")[2] == WEIGHT


def usual_scale(name: str, parameters: Mapping[str, Tensor]) -> float | None:
    """The scale that makes random ternary weights a matrix of 1/sqrt(fan_in); None: no scale of such."""
    module, dot, kind = name.rpartition(".")
    weight = parameters.get(f"{module}{dot}{WEIGHT}")
    if kind != SCALE or weight is None or not is_ternary(WEIGHT, weight):
        return None
    return (VARIANCE * weight.shape[-1]) ** -0.5


def packed_digits(numbers: Tensor) -> Tensor:
    """uint8: for each of the numbers below BYTES its own byte of four values."""
    return ternary.pack(torch.stack([numbers // 3**place % 3 - 1 for place in range(ternary.PER_BYTE)]))[0]
