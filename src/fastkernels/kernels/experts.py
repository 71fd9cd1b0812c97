"""Gated feed-forward blocks of chosen experts, summed with their routing weights.

    u[t, j] = act(x[t] Wg[e]^T) * (x[t] Wu[e]^T)                        e = topk_ids[t, j]
    y[t] = sum_j topk_weights[t, j] (u[t, j] W2[e]^T)

T tokens · k experts of a token · E experts · D hidden · F intermediate. W13 [E, 2F, D] packs Wg and Wu, gate
first; W2 is [E, D, F]; activations as in kernels/glu. It is moe_align, grouped_linear_glu, grouped_linear and
moe_sum, with their roundings.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.glu import ACTIVATIONS, Activation
from fastkernels.kernels.grouped_linear import grouped_linear
from fastkernels.kernels.grouped_linear_glu import grouped_linear_glu
from fastkernels.kernels.moe_permute import moe_align, moe_sum
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.work import Tally


def _in_parts(impl: str | None) -> Callable[..., Tensor]:
    """All parts by implementation `impl`; by the one that is chosen for each of them."""

    def experts(
        x_TD: Tensor,
        topk_weights_TK: Tensor,
        topk_ids_TK: Tensor,
        w13_E2FD: Tensor,
        w2_EDF: Tensor,
        activation: Activation,
    ) -> Tensor:
        aligned = moe_align(topk_ids_TK, w13_E2FD.shape[0], impl=impl)
        active_SF = grouped_linear_glu(x_TD, w13_E2FD, *aligned, activation, impl=impl)
        y_SD = grouped_linear(active_SF, w2_EDF, *aligned, topk_weights_TK.flatten(), impl=impl)
        return moe_sum(y_SD.view(*topk_ids_TK.shape, x_TD.shape[-1]), impl=impl)

    return experts


def _work(tally: Tally, x_TD: Tensor, weights_TK: Tensor, ids_TK: Tensor, *rest: Tensor) -> None:
    for stack in rest[:2]:
        tally.look_up_experts(stack, ids_TK.numel())
        tally.multiply(x_TD, 2 * ids_TK.numel() * stack[0].numel())


_experts = Kernel(
    "experts",
    "(Tensor x, Tensor topk_weights, Tensor topk_ids, Tensor w13, Tensor w2, str activation) -> Tensor",
    _in_parts("reference"),
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("parts", _in_parts(None), devices=("cpu", "cuda")),
        Implementation("vllm", f"{PROVIDERS}.vllm_experts", requires=("vllm",), extra="vllm"),
    ),
    rows=lambda x_TD, *_: x_TD.shape[0],
    work=_work,
)


def experts(
    x_TD: Tensor,
    topk_weights_TK: Tensor,
    topk_ids_TK: Tensor,
    w13_E2FD: Tensor,
    w2_EDF: Tensor,
    activation: Activation,
    *,
    impl: str | None = None,
) -> Tensor:
    """[T, D] in x's dtype, contiguous; w13 and w2 share it. topk_weights float32 and topk_ids int32 [T, k].

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(ACTIVATIONS)}")
    return _experts(x_TD, topk_weights_TK, topk_ids_TK, w13_E2FD, w2_EDF, activation, impl=impl)
