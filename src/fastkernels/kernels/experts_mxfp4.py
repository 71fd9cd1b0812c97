"""Feed-forward blocks of chosen experts with weights of four bits, summed with their routing weights.

    u[t, j] = clamped_glu(x[t] W13[e]^T + b13[e])                      e = topk_ids[t, j]
    y[t] = sum_j topk_weights[t, j] (u[t, j] W2[e]^T + b2[e])

T tokens · k experts of a token · E experts · D hidden · F intermediate · G groups of 32 inputs. It is
moe_align, grouped_linear_mxfp4, clamped_glu, grouped_linear_mxfp4 and moe_sum in fewer launches, with their
roundings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.clamped_glu import clamped_glu
from fastkernels.kernels.grouped_linear_mxfp4 import grouped_linear_mxfp4
from fastkernels.kernels.low_bit_dequant import GROUP, require_groups
from fastkernels.kernels.moe_permute import moe_align, moe_sum
from fastkernels.kernels.work import Tally


def _in_parts(impl: str | None) -> Callable[..., Tensor]:
    """All parts by implementation `impl`; by the one that is chosen for each of them."""

    def experts_mxfp4(
        x_TD: Tensor,
        topk_weights_TK: Tensor,
        topk_ids_TK: Tensor,
        blocks13: Tensor,
        scales13: Tensor,
        bias13: Tensor,
        blocks2: Tensor,
        scales2: Tensor,
        bias2: Tensor,
        alpha: float,
        limit: float,
    ) -> Tensor:
        aligned = moe_align(topk_ids_TK, blocks13.shape[0], impl=impl)
        both_S2F = grouped_linear_mxfp4(x_TD, blocks13, scales13, bias13, *aligned, impl=impl)
        active_SF = clamped_glu(both_S2F, alpha, limit, impl=impl)
        weights_S = topk_weights_TK.flatten()
        y_SD = grouped_linear_mxfp4(active_SF, blocks2, scales2, bias2, *aligned, weights_S, impl=impl)
        return moe_sum(y_SD.view(*topk_ids_TK.shape, -1), impl=impl)

    return experts_mxfp4


def _work(tally: Tally, x_TD: Tensor, weights_TK: Tensor, ids_TK: Tensor, *rest: Any) -> None:
    *stacks, _, _ = rest
    for stack in stacks:
        tally.look_up_experts(stack, ids_TK.numel())
    for scales in (stacks[1], stacks[4]):
        tally.multiply(x_TD, 2 * ids_TK.numel() * scales[0].numel() * GROUP)


_experts_mxfp4 = Kernel(
    "experts_mxfp4",
    "(Tensor x, Tensor topk_weights, Tensor topk_ids, Tensor blocks13, Tensor scales13, Tensor bias13, "
    "Tensor blocks2, Tensor scales2, Tensor bias2, float alpha, float limit) -> Tensor",
    _in_parts("reference"),
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _in_parts(None), devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.shape[0],
    work=_work,
)


def experts_mxfp4(
    x_TD: Tensor,
    topk_weights_TK: Tensor,
    topk_ids_TK: Tensor,
    blocks13: Tensor,
    scales13: Tensor,
    bias13: Tensor,
    blocks2: Tensor,
    scales2: Tensor,
    bias2: Tensor,
    alpha: float,
    limit: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """[T, D] in x's dtype, contiguous. topk_weights float32 and topk_ids int32 [T, k], the ids of a row
    distinct; blocks13 [E, 2F, G, 16], scales13 [E, 2F, G], bias13 [E, 2F], blocks2 [E, D, G', 16] and so on.

    Raises KernelError when `impl` cannot serve the call, ValueError for blocks of another size.
    """
    require_groups(blocks13, scales13)
    require_groups(blocks2, scales2)
    weights = (blocks13, scales13, bias13, blocks2, scales2, bias2)
    return _experts_mxfp4(x_TD, topk_weights_TK, topk_ids_TK, *weights, alpha, limit, impl=impl)
