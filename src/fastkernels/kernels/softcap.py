"""Values kept within a bound, smoothly.

    y = cap tanh(x / cap)

Any shape; cap > 0. Float32 inside (float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(x: Tensor, cap: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (torch.tanh(wide / cap) * cap).to(x.dtype)


def _torch_unsupported(x: Tensor, cap: float) -> str | None:
    if x.dtype not in (torch.float32, torch.float64):
        return "would round 16-bit values before the product"
    return None


def _torch(x: Tensor, cap: float) -> Tensor:
    """One new tensor, changed in place."""
    return (x / cap).tanh_().mul_(cap)


_softcap = Kernel(
    "softcap",
    "(Tensor x, float cap) -> Tensor",
    _reference,
    fake=lambda x, cap: x.new_empty(x.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
    ),
    rows=lambda x, cap: x.numel() // max(1, x.shape[-1]),
)


def softcap(x: Tensor, cap: float, *, impl: str | None = None) -> Tensor:
    """cap * tanh(x / cap), contiguous, in x's shape and dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError unless cap > 0.
    """
    if not cap > 0:
        raise ValueError(f"cap must be above 0, not {cap}")
    return _softcap(x, cap, impl=impl)
