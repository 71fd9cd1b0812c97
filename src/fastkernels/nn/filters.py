"""Filters of convolutions: the parameters of four dimensions, or of five over frames. Codes of packed
weights, which have four too, are no numbers.

A model keeps them channels last, [output, row, column, input], as its feature maps are; checkpoints store
[output, input, row, column]. A frame comes before its rows.
"""

from __future__ import annotations

from torch import Tensor


def is_filters(parameter: Tensor) -> bool:
    return parameter.dim() in (4, 5) and parameter.is_floating_point()


def as_stored(parameter: Tensor) -> Tensor:
    """The same memory with the dimensions of a checkpoint's tensor; what is no filter stays as it is."""
    return parameter.movedim(-1, 1) if is_filters(parameter) else parameter
