"""Group normalisation of feature maps, channels last, and the activation behind it.

    n = (x - mean_g) / sqrt(var_g + eps) * weight[c] + bias[c]        y = act(n)
    silu(n) = n / (1 + exp(-n))          none(n) = n

B images · Y, X rows and columns · C channels · G groups of S = C / G neighbouring channels. mean_g and var_g
are those of all Y X S values of the group of c in one image; var is mean((x - mean)^2). All of it in float32
(float64 stays float64), rounded once to the dtype of x.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.group_norm import reference

Activation = Literal["silu", "none"]

_group_norm = Kernel(
    "group_norm",
    "(Tensor x, Tensor weight, Tensor bias, int groups, float eps, str activation) -> Tensor",
    reference.group_norm,
    fake=lambda x_BYXC, *_: x_BYXC.new_empty(x_BYXC.shape),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
        Implementation("inductor", f"{__name__}.inductor"),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
)


def group_norm(
    x_BYXC: Tensor,
    weight_C: Tensor,
    bias_C: Tensor,
    groups: int,
    eps: float,
    activation: Activation = "none",
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Y, X, C], contiguous, in the dtype of x; all tensors have one dtype.

    Raises KernelError when `impl` cannot serve the call, ValueError where groups do not divide the channels,
    and for another activation.
    """
    if x_BYXC.shape[-1] % groups:
        raise ValueError(f"{x_BYXC.shape[-1]} channels are no {groups} groups of one size")
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(reference.ACTIVATIONS)}")
    return _group_norm(x_BYXC, weight_C, bias_C, groups, eps, activation, impl=impl)
