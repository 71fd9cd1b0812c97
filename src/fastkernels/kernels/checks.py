"""Conditions that several implementations put on their arguments; each answers with a reason or None."""

from __future__ import annotations

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
VECTOR_BYTES = 16


def not_half(*tensors: Tensor) -> str | None:
    """Reason unless all tensors have one 16-bit float type."""
    if tensors[0].dtype not in HALVES:
        return f"serves float16 and bfloat16, not {_name(tensors[0].dtype)}"
    return not_alike(*tensors)


def not_float32_compute(*tensors: Tensor) -> str | None:
    """Reason unless all tensors have one float type that float32 arithmetic serves."""
    if not tensors[0].dtype.is_floating_point or tensors[0].dtype.itemsize not in (2, 4):
        return f"computes in float32, not {_name(tensors[0].dtype)}"
    return not_alike(*tensors)


def not_alike(*tensors: Tensor) -> str | None:
    """Reason unless all tensors have the dtype of the first."""
    for tensor in tensors[1:]:
        if tensor.dtype != tensors[0].dtype:
            return f"needs one dtype, not {_name(tensors[0].dtype)} and {_name(tensor.dtype)}"
    return None


def not_aligned(*tensors: Tensor) -> str | None:
    """Reason unless every row of every tensor starts at a multiple of 16 bytes and is contiguous."""
    for tensor in tensors:
        if tensor.stride(-1) != 1:
            return "needs a contiguous last dimension"
        size = tensor.element_size()
        if tensor.data_ptr() % VECTOR_BYTES or any(s * size % VECTOR_BYTES for s in tensor.stride()[:-1]):
            return f"needs rows at multiples of {VECTOR_BYTES} bytes"
    return None


def not_rows(*tensors: Tensor) -> str | None:
    """Reason unless every tensor can be seen as rows that lie evenly, each contiguous."""
    for tensor in tensors:
        if tensor.stride(-1) != 1 or not (tensor.ndim == 2 or tensor.is_contiguous()):
            return "needs contiguous rows at one distance from each other"
    return None


def given(*tensors: Tensor | None) -> list[Tensor]:
    """Those that are there, of optional ones."""
    return [tensor for tensor in tensors if tensor is not None]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
