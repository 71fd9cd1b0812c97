"""A linear layer in which every row has its own weight: that of its expert.

    y[s, n] = w[s] sum_k x[s // R, k] weight[e(s), n, k]

S slots, in the order t k + j · K inputs · N outputs · E experts · R = S / rows of x: the slots that share a
row of x (the experts of a token, or 1). Slot s belongs to the expert e with s in order[starts[e] :
starts[e+1]] (moe_align). Without w (routing weights, float32) it counts as 1. Accumulates in at least
float32; rounds to the dtype of x after the product with w, or before and after it. Experts without slots are
never read. y lies in the order of slots, so a token's experts are neighbours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.policy import Entry
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.work import Tally


def _reference(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, slot_weights_S: Tensor | None
) -> Tensor:
    """One matrix product for each expert that has slots."""
    y_SN = x_RK.new_empty((order_S.shape[0], weight_ENK.shape[1]))
    if not y_SN.numel():
        return y_SN
    sharing = order_S.shape[0] // x_RK.shape[0]
    starts = starts_E1.tolist()
    for weight_NK, start, end in zip(weight_ENK, starts, starts[1:]):
        if start == end:
            continue
        slots = order_S[start:end].long()
        product = x_RK[slots // sharing] @ weight_NK.T
        y_SN[slots] = product if slot_weights_S is None else _scaled(product, slot_weights_S[slots])
    return y_SN


def _scaled(product: Tensor, weights: Tensor) -> Tensor:
    return (product * weights[:, None]).to(product.dtype)


HOPPER = (9, 0)


def _torch_unsupported(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, *_: object
) -> str | None:
    if not hasattr(F, "grouped_mm"):
        return f"needs torch.nn.functional.grouped_mm, which torch {torch.__version__} has not"
    if x_RK.is_cuda:
        # Other types and older GPUs take a path that reads the group sizes on the host.
        if x_RK.dtype != torch.bfloat16:
            return f"serves bfloat16 on CUDA, not {str(x_RK.dtype).removeprefix('torch.')}"
        if torch.cuda.get_device_capability(x_RK.device) < HOPPER:
            return "needs compute capability 9.0"
        if weight_ENK.shape[1] * weight_ENK.element_size() % checks.VECTOR_BYTES:
            return f"needs output rows of a multiple of {checks.VECTOR_BYTES} bytes"
    return checks.not_alike(x_RK, weight_ENK) or checks.not_aligned(x_RK, weight_ENK)


def _torch(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, slot_weights_S: Tensor | None
) -> Tensor:
    """PyTorch's grouped matrix product: CUTLASS for bfloat16 on CUDA, a loop on a CPU.

    It wants the rows of an expert together, so rows are gathered before and scattered after it.
    """
    slots = order_S.shape[0]
    if slots == 0:
        return x_RK.new_empty((0, weight_ENK.shape[1]))
    order_S = order_S.long()
    gathered_SK = x_RK.index_select(0, order_S // (slots // x_RK.shape[0]))
    product_SN = F.grouped_mm(gathered_SK, weight_ENK.transpose(1, 2), offs=starts_E1[1:])
    if slot_weights_S is not None:
        product_SN = (product_SN * slot_weights_S.index_select(0, order_S)[:, None]).to(x_RK.dtype)
    return torch.empty_like(product_SN).index_copy_(0, order_S, product_SN)


def _work(tally: Tally, x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, *_: object) -> None:
    tally.look_up_experts(weight_ENK, len(order_S))
    tally.multiply(x_RK, 2 * len(order_S) * weight_ENK[0].numel())


_grouped_linear = Kernel(
    "grouped_linear",
    "(Tensor x, Tensor weight, Tensor order, Tensor starts, Tensor? slot_weights) -> Tensor",
    _reference,
    fake=lambda x_RK, weight_ENK, order_S, *_: x_RK.new_empty((order_S.shape[0], weight_ENK.shape[1])),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("hopper", "fastkernels.kernels.grouped_linear_hopper"),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
        Implementation(
            "deep_gemm",
            f"{PROVIDERS}.deep_gemm",
            requires=("deep_gemm or vllm.third_party.deep_gemm",),
            extra="vllm",
        ),
    ),
    # reference / torch, us, at 8, 32 and 128 tokens of 2 experts: 227 / 122, 274 / 179, 608 / 416; at 1,024
    # 2370 / 4720.
    cpu=(Entry("torch", 512),),
    rows=lambda x_RK, weight_ENK, order_S, *_: order_S.shape[0],
    work=_work,
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
