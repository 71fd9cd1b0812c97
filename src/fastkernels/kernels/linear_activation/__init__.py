"""A linear layer and the activation of its output: the first half of a feed-forward block.

    y = act(x W^T + b)        activations and their names as in kernels/activation

T tokens · K inputs · N outputs. W is [N, K], as checkpoints store it. Accumulates in at least float32, rounds
to the dtype of x after the activation; an implementation may round the product, too.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.activation import Name
from fastkernels.kernels.activation.reference import ACTIVATIONS
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.linear_activation import reference

_linear_activation = Kernel(
    "linear_activation",
    "(Tensor x, Tensor weight, Tensor? bias, str name) -> Tensor",
    reference.linear_activation,
    fake=lambda x_TK, weight_NK, bias_N, name: x_TK.new_empty((*x_TK.shape[:-1], weight_NK.shape[0])),
    implementations=(
        Implementation("cublaslt", f"{__name__}.cublaslt"),
        Implementation("parts", f"{__name__}.parts", devices=("cpu", "cuda")),
        Implementation("triton", f"{__name__}.triton"),
        Implementation("gemv", f"{__name__}.gemv"),
    ),
    rows=lambda x_TK, *_: x_TK.numel() // x_TK.shape[-1],
)


def linear_activation(
    x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, name: Name, *, impl: str | None = None
) -> Tensor:
    """act(x @ weight.T + bias), contiguous; x has any number of dimensions before the last, all tensors one
    dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    return _linear_activation(x_TK, weight_NK, bias_N, name, impl=impl)
