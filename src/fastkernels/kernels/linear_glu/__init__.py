"""A linear layer and the gated linear unit of its output: the first half of a gated feed-forward block.

    y = act(x Wg^T + bg) * (x Wu^T + bu)        activations and their names as in kernels/glu

T tokens · D inputs · F outputs. Wg and Wu are one packed weight [2F, D], gate first, their biases one [2F].
Accumulates in at least float32, rounds to the dtype of x at the end; an implementation may round the products
and the activation, too.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.glu import Activation
from fastkernels.kernels.glu.reference import ACTIVATIONS
from fastkernels.kernels.linear_glu import reference

_linear_glu = Kernel(
    "linear_glu",
    "(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    reference.linear_glu,
    fake=lambda x_TD, weight_2FD, *_: x_TD.new_empty((*x_TD.shape[:-1], weight_2FD.shape[0] // 2)),
    implementations=(
        Implementation("gemv", f"{__name__}.gemv"),
        Implementation("triton", f"{__name__}.triton"),
        Implementation("parts", f"{__name__}.parts", devices=("cpu", "cuda")),
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
