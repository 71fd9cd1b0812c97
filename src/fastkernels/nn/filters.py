"""Filters of convolutions: the parameters of four dimensions.

A model keeps them channels last, [output, row, column, input], as its feature maps are; checkpoints store
[output, input, row, column].
"""

from __future__ import annotations

from torch import Tensor


def is_filters(parameter: Tensor) -> bool:
    return parameter.dim() == 4


def as_stored(parameter: Tensor) -> Tensor:
    """The same memory with the dimensions of a checkpoint's tensor; what is no filter stays as it is."""
    return parameter.permute(0, 3, 1, 2) if is_filters(parameter) else parameter
