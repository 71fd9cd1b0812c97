"""grouped_linear with weights of four bits (low_bit_dequant.py) and a bias for each expert.

    y[s, n] = w[s] (sum_k x[s // R, k] weight[e(s), n, k] + bias[e(s), n])

S slots, in the order t k + j · K inputs · N outputs · E experts · R = S / rows of x · G = K / 32 groups. Slot
s belongs to the expert e with s in order[starts[e] : starts[e+1]] (moe_align); without w it counts as 1.
Weights are exact in the dtype of x, so only sums differ from those of expanded ones. Accumulates in at least
float32, rounds to the dtype of x once, or also before the product with w. Experts without slots are never
read.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.grouped_linear import grouped_linear
from fastkernels.kernels.low_bit_dequant import GROUP, low_bit_dequant, require_groups
from fastkernels.kernels.work import Tally


def _reference(
    x_RK: Tensor,
    blocks_ENGB: Tensor,
    scales_ENG: Tensor,
    bias_EN: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    slot_weights_S: Tensor | None,
) -> Tensor:
    """One matrix product for each expert that has slots."""
    slots, outputs = order_S.shape[0], blocks_ENGB.shape[1]
    y_SN = x_RK.new_empty((slots, outputs))
    if not y_SN.numel():
        return y_SN
    wide = torch.promote_types(x_RK.dtype, torch.float32)
    starts = starts_E1.tolist()
    for expert, (start, end) in enumerate(pairwise(starts)):
        if start == end:
            continue
        mine = order_S[start:end].long()
        weight_NK = low_bit_dequant(blocks_ENGB[expert], scales_ENG[expert], wide, impl="reference")
        y = x_RK[mine // (slots // x_RK.shape[0])].to(wide) @ weight_NK.T + bias_EN[expert].to(wide)
        if slot_weights_S is not None:
            y *= slot_weights_S[mine, None]
        y_SN[mine] = y.to(x_RK.dtype)
    return y_SN


def _torch(
    x_RK: Tensor,
    blocks_ENGB: Tensor,
    scales_ENG: Tensor,
    bias_EN: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    slot_weights_S: Tensor | None,
) -> Tensor:
    """All weights expanded in memory, then a grouped product: for many rows."""
    y_SN = grouped_linear(x_RK, low_bit_dequant(blocks_ENGB, scales_ENG, x_RK.dtype), order_S, starts_E1)
    places_S = torch.arange(len(order_S), dtype=torch.int32, device=order_S.device)
    experts_S = torch.bucketize(places_S, starts_E1[1:], right=True)
    bias_SN = torch.empty_like(y_SN).index_copy_(0, order_S.long(), bias_EN.index_select(0, experts_S))
    y_SN += bias_SN
    return y_SN if slot_weights_S is None else (y_SN * slot_weights_S[:, None]).to(y_SN.dtype)


def _torch_unsupported(x_RK: Tensor, *_: object) -> str | None:
    if x_RK.dtype not in (torch.bfloat16, torch.float32):
        return f"expands weights to bfloat16 and float32, not {str(x_RK.dtype).removeprefix('torch.')}"
    return None


def _work(tally: Tally, x_RK: Tensor, blocks_ENGB: Tensor, scales_ENG: Tensor, bias_EN: Tensor,
          order_S: Tensor, *_: object) -> None:  # fmt: skip
    for stack in (blocks_ENGB, scales_ENG, bias_EN):
        tally.look_up_experts(stack, len(order_S))
    tally.multiply(x_RK, 2 * len(order_S) * scales_ENG[0].numel() * GROUP)


_grouped_linear_mxfp4 = Kernel(
    "grouped_linear_mxfp4",
    "(Tensor x, Tensor blocks, Tensor scales, Tensor bias, Tensor order, Tensor starts, "
    "Tensor? slot_weights) -> Tensor",
    _reference,
    fake=lambda x_RK, blocks, scales, bias, order_S, *_: x_RK.new_empty((order_S.shape[0], blocks.shape[1])),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
    ),
    rows=lambda x_RK, blocks, scales, bias, order_S, *_: order_S.shape[0],
    work=_work,
)


def grouped_linear_mxfp4(
    x_RK: Tensor,
    blocks_ENGB: Tensor,
    scales_ENG: Tensor,
    bias_EN: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    slot_weights_S: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """[S, N] in x's dtype, contiguous. x [S / R, K] and bias [E, N] of one dtype; blocks [E, N, K / 32, 16]
    and scales [E, N, K / 32] uint8; order [S] and starts [E+1] int32.

    Raises KernelError when `impl` cannot serve the call, ValueError where groups or slots do not fit.
    """
    require_groups(blocks_ENGB, scales_ENG)
    rows, slots, inputs = x_RK.shape[0], order_S.shape[0], GROUP * scales_ENG.shape[-1]
    if x_RK.shape[-1] != inputs:
        raise ValueError(f"weights of {inputs} inputs do not fit rows of {x_RK.shape[-1]}")
    if slots and (not rows or slots % rows):
        raise ValueError(f"{slots} slots cannot share {rows} rows evenly")
    return _grouped_linear_mxfp4(
        x_RK, blocks_ENGB, scales_ENG, bias_EN, order_S, starts_E1, slot_weights_S, impl=impl
    )
