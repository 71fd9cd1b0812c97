"""A linear layer and the gated linear unit of its output: the first half of a gated feed-forward block.

    y = act(x Wg^T + bg) * (x Wu^T + bu)        activations and their names as in kernels/glu

T tokens · D inputs · F outputs. Wg and Wu are one packed weight [2F, D], gate first, their biases one [2F].
Accumulates in at least float32, rounds to the dtype of x at the end; an implementation may round the products
and the activation, too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.glu import ACTIVATIONS, Activation, glu
from fastkernels.kernels.linear import linear


def _reference(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: str) -> Tensor:
    dtype = torch.promote_types(x_TD.dtype, torch.float32)
    bias = None if bias_2F is None else bias_2F.to(dtype)
    gate_TF, up_TF = F.linear(x_TD.to(dtype), weight_2FD.to(dtype), bias).chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate_TF) * up_TF).to(x_TD.dtype)


def _parts(x_TD: Tensor, weight_2FD: Tensor, bias_2F: Tensor | None, activation: Activation) -> Tensor:
    """Two kernels, each the choice for this device; the products are rounded between them."""
    return glu(linear(x_TD, weight_2FD, bias_2F), activation)


_linear_glu = Kernel(
    "linear_glu",
    "(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    _reference,
    fake=lambda x_TD, weight_2FD, *_: x_TD.new_empty((*x_TD.shape[:-1], weight_2FD.shape[0] // 2)),
    implementations=(
        Implementation("gemv", f"{__name__}_gemv"),
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _parts, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
)


def linear_glu(
    x_TD: Tensor,
    weight_2FD: Tensor,
    bias_2F: Tensor | None,
    activation: Activation,
    *,
    impl: str | None = None,
) -> Tensor:
    """act(x @ Wg.T + bg) * (x @ Wu.T + bu), contiguous; x has any number of dimensions before the last, all
    tensors one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(ACTIVATIONS)}")
    return _linear_glu(x_TD, weight_2FD, bias_2F, activation, impl=impl)
