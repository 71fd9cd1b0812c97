"""Boxes moved by what a decoder's layer says of them, between 0 and 1.

    o = 1 / (1 + exp(-(deltas + logit(boxes))))        logit(p) = log(max(p, eps) / max(1 - p, eps))

B images · K boxes of four numbers within 0 .. 1, else cut to that · eps 1e-5. In float32 (float64 stays
float64), and so is the result: a float16 place in an image of 640 pixels would be right to a third of a
pixel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

EPS = 1e-5


def _dtype(deltas_BK4: Tensor, boxes_BK4: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(deltas_BK4.dtype, boxes_BK4.dtype), torch.float32)


def _reference(deltas_BK4: Tensor, boxes_BK4: Tensor) -> Tensor:
    dtype = _dtype(deltas_BK4, boxes_BK4)
    boxes_BK4 = boxes_BK4.to(dtype).clamp(0, 1)
    logits_BK4 = torch.log(boxes_BK4.clamp(min=EPS) / (1 - boxes_BK4).clamp(min=EPS))
    return 1 / (1 + torch.exp(-(deltas_BK4.to(dtype) + logits_BK4)))


def _torch(deltas_BK4: Tensor, boxes_BK4: Tensor) -> Tensor:
    boxes_BK4 = boxes_BK4.to(_dtype(deltas_BK4, boxes_BK4)).clamp(0, 1)
    logits_BK4 = boxes_BK4.clamp(min=EPS).div_((1 - boxes_BK4).clamp_(min=EPS)).log_()
    return logits_BK4.add_(deltas_BK4).sigmoid_()


_box_refine = Kernel(
    "box_refine",
    "(Tensor deltas, Tensor boxes) -> Tensor",
    _reference,
    fake=lambda deltas_BK4, boxes_BK4: deltas_BK4.new_empty(
        deltas_BK4.shape, dtype=_dtype(deltas_BK4, boxes_BK4)
    ),
    implementations=(
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda deltas_BK4, boxes_BK4: deltas_BK4.numel() // 4,
)


def box_refine(deltas_BK4: Tensor, boxes_BK4: Tensor, *, impl: str | None = None) -> Tensor:
    """[B, K, 4], float32 at least; both have one shape.

    Raises KernelError when `impl` cannot serve the call, ValueError for shapes that differ.
    """
    if deltas_BK4.shape != boxes_BK4.shape:
        raise ValueError(f"deltas {list(deltas_BK4.shape)} are not those of boxes {list(boxes_BK4.shape)}")
    return _box_refine(deltas_BK4, boxes_BK4, impl=impl)
