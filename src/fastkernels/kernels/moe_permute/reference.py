"""moe_align and moe_sum in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def moe_align(ids_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    ids_S, order_S = ids_TK.flatten().sort(stable=True)
    experts_E1 = torch.arange(num_experts + 1, dtype=ids_S.dtype, device=ids_S.device)
    return order_S.to(torch.int32), torch.searchsorted(ids_S, experts_E1, out_int32=True)


def moe_sum(x_TKD: Tensor) -> Tensor:
    return x_TKD.to(torch.promote_types(x_TKD.dtype, torch.float32)).sum(1).to(x_TKD.dtype)
