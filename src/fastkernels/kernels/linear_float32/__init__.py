"""A linear layer whose sums are not rounded: logits.

    y[t, n] = sum_k x[t, k] weight[n, k] + bias[n]

T tokens · K inputs · N outputs. weight is [N, K], as checkpoints store it. Accumulates in at least float32;
y is float32, float64 for float64 inputs.
"""

from __future__ import annotations

# By name: `torch` is a module of this folder.
from torch import Tensor, float32, promote_types

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.linear_float32 import reference


def _fake(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    dtype = promote_types(x_TK.dtype, float32)
    return x_TK.new_empty((*x_TK.shape[:-1], weight_NK.shape[0]), dtype=dtype)


_linear_float32 = Kernel(
    "linear_float32",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    reference.linear_float32,
    fake=_fake,
    implementations=(
        Implementation("cublas", f"{__name__}.cublas"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu",)),
        Implementation("triton", f"{__name__}.triton"),
        Implementation("gemv", f"{__name__}.gemv"),
    ),
    rows=lambda x_TK, *_: x_TK.numel() // x_TK.shape[-1],
)


def linear_float32(
    x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, *, impl: str | None = None
) -> Tensor:
    """x @ weight.T + bias in float32 (float64), contiguous; x has any number of dimensions before the last,
    all tensors one dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _linear_float32(x_TK, weight_NK, bias_N, impl=impl)
