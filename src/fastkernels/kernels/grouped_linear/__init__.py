"""A linear layer in which every row has its own weight: that of its expert.

    y[s, n] = w[s] sum_k x[s // R, k] weight[e(s), n, k]

S slots, in the order t k + j · K inputs · N outputs · E experts · R = S / rows of x: the slots that share a
row of x (the experts of a token, or 1). Slot s belongs to the expert e with s in order[starts[e] :
starts[e+1]] (moe_align). Without w (routing weights, float32) it counts as 1. Accumulates in at least
float32; rounds to the dtype of x after the product with w, or before and after it. Experts without slots are
never read. y lies in the order of slots, so a token's experts are neighbours.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.grouped_linear import reference

_grouped_linear = Kernel(
    "grouped_linear",
    "(Tensor x, Tensor weight, Tensor order, Tensor starts, Tensor? slot_weights) -> Tensor",
    reference.grouped_linear,
    fake=lambda x_RK, weight_ENK, order_S, *_: x_RK.new_empty((order_S.shape[0], weight_ENK.shape[1])),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_RK, weight_ENK, order_S, *_: order_S.shape[0],
)


def grouped_linear(
    x_RK: Tensor,
    weight_ENK: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    slot_weights_S: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """[S, N] in x's dtype, contiguous; x [S / R, K] and weight [E, N, K] share it; order, starts int32.

    Raises KernelError when `impl` cannot serve the call, ValueError where S is no multiple of x's rows.
    """
    rows, slots = x_RK.shape[0], order_S.shape[0]
    if slots and (not rows or slots % rows):
        raise ValueError(f"{slots} slots cannot share {rows} rows evenly")
    return _grouped_linear(x_RK, weight_ENK, order_S, starts_E1, slot_weights_S, impl=impl)
