"""experts_mxfp4 in Triton: the first product with its activation, the second with its weights, and the sum.

A single token's experts differ, so each of its slots is a tile and nothing is aligned: two launches. More
tokens share what an expert's weights cost, by alignment: four.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.grouped_linear_mxfp4_triton import launch, not_served
from fastkernels.kernels.moe_permute_triton import moe_align, moe_sum


def unsupported(
    kernel: str,
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
) -> str | None:
    if not (topk_ids_TK.is_contiguous() and topk_weights_TK.is_contiguous()):
        return "needs contiguous ids and weights"
    return not_served(x_TD, blocks13, scales13, bias13) or not_served(x_TD, blocks2, scales2, bias2)


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
    weights_S, activation = topk_weights_TK.flatten(), (alpha, limit)
    if x_TD.shape[0] == 1:
        experts_S = topk_ids_TK.flatten()
        active_SF = launch(x_TD, blocks13, scales13, bias13, experts_S, None, activation=activation)
        return launch(active_SF, blocks2, scales2, bias2, experts_S, None, weights_S, sums=True)
    aligned = moe_align(topk_ids_TK, blocks13.shape[0])
    active_SF = launch(x_TD, blocks13, scales13, bias13, *aligned, activation=activation)
    y_SD = launch(active_SF, blocks2, scales2, bias2, *aligned, weights_S)
    return moe_sum(y_SD.view(*topk_ids_TK.shape, -1))
