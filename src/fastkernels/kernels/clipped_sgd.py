"""A step of gradient descent whose gradient is clipped by its norm over all parameters.

    n = sqrt(sum_p g[p]^2)
    y[p] = w[p] - lr g[p] min(1, most / n)

P parameters, of any number of matrices in one tensor. In the dtype of w, at least float32; nothing keeps n
from being 0, where the step is too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel


def _reference(weight_P: Tensor, grad_P: Tensor, lr: float, most: float) -> Tensor:
    norm = grad_P.square().sum().sqrt()
    return weight_P - lr * grad_P * (most / norm.clamp(min=most))


def _torch(weight_P: Tensor, grad_P: Tensor, lr: float, most: float) -> Tensor:
    """Two passes: the norm, then the sum of products. The factor stays on the device."""
    factor = torch.linalg.vector_norm(grad_P).clamp_(min=most).reciprocal_().mul_(-lr * most)
    return torch.addcmul(weight_P, grad_P, factor)


_clipped_sgd = Kernel(
    "clipped_sgd",
    "(Tensor weight, Tensor grad, float lr, float most) -> Tensor",
    _reference,
    fake=lambda weight_P, *_: weight_P.new_empty(weight_P.shape),
    implementations=(Implementation("torch", _torch, devices=("cpu", "cuda")),),
    rows=lambda weight_P, *_: weight_P.numel(),
)


def clipped_sgd(
    weight_P: Tensor, grad_P: Tensor, lr: float, most: float, *, impl: str | None = None
) -> Tensor:
    """The next weights, in memory of their own; both tensors are contiguous, of one shape and one dtype, and
    most is above 0. Raises KernelError when `impl` cannot serve the call, TypeError for 16-bit weights, which
    small steps would not change."""
    if weight_P.dtype.itemsize < 4:
        raise TypeError(f"weights that take small steps are at least float32, not {weight_P.dtype}")
    return _clipped_sgd(weight_P, grad_P, lr, most, impl=impl)
