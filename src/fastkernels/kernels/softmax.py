"""Softmax over the last dimension.

    y[t, d] = exp(x[t, d] - max_d x[t]) / sum_d exp(x[t, d] - max_d x[t])

T rows · D width. Float32 inside (float64 stays float64), rounded once to the dtype of x. -inf gives 0; a row
of nothing but -inf gives NaN, as does a row with NaN or +inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS


def _reference(x_TD: Tensor) -> Tensor:
    x = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    weight = torch.exp(x - x.amax(-1, keepdim=True))
    return (weight / weight.sum(-1, keepdim=True)).to(x_TD.dtype)


# On a CPU with registers of eight values the error of a row is twice the reference's at 400, at 17,001 thirty
# times, at 128,256 three hundred times.
WIDEST_ON_THE_CPU = 400


def _torch_unsupported(x_TD: Tensor) -> str | None:
    if x_TD.device.type == "cpu" and x_TD.dtype == torch.float32 and x_TD.shape[-1] > WIDEST_ON_THE_CPU:
        return (
            f"on a CPU it sums a row in one run, too roughly for more than {WIDEST_ON_THE_CPU} float32 values"
        )
    return None


def _torch(x_TD: Tensor) -> Tensor:
    """Accumulates 16-bit rows in float32."""
    return torch.softmax(x_TD, -1)


_softmax = Kernel(
    "softmax",
    "(Tensor x) -> Tensor",
    _reference,
    fake=lambda x_TD: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
        Implementation("inductor", compiled(_reference)),
        Implementation("quack", f"{PROVIDERS}.quack", requires=("quack",), extra="quack"),
        Implementation("liger", f"{PROVIDERS}.liger", requires=("liger_kernel",), extra="liger"),
    ),
    rows=lambda x_TD: x_TD.numel() // x_TD.shape[-1],
)


def softmax(x_TD: Tensor, *, impl: str | None = None) -> Tensor:
    """Softmax of the last dimension, contiguous, in x's shape and dtype; any number of dimensions before it.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _softmax(x_TD, impl=impl)
