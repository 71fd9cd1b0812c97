"""grouped_linear by PyTorch's grouped matrix product: CUTLASS for bfloat16 on CUDA, a loop on a CPU.

It wants the rows of an expert together, so rows are gathered before and scattered after it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks

HOPPER = (9, 0)


def unsupported(
    kernel: str, x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, *_: object
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


def grouped_linear(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, slot_weights_S: Tensor | None
) -> Tensor:
    slots = order_S.shape[0]
    if slots == 0:
        return x_RK.new_empty((0, weight_ENK.shape[1]))
    order_S = order_S.long()
    gathered_SK = x_RK.index_select(0, order_S // (slots // x_RK.shape[0]))
    product_SN = F.grouped_mm(gathered_SK, weight_ENK.transpose(1, 2), offs=starts_E1[1:])
    if slot_weights_S is not None:
        product_SN = (product_SN * slot_weights_S.index_select(0, order_S)[:, None]).to(x_RK.dtype)
    return torch.empty_like(product_SN).index_copy_(0, order_S, product_SN)
