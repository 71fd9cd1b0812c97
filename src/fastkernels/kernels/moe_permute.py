"""Tokens by expert, and back: which slots each expert serves, and the sum over a token's experts.

    slot s = t k + j is the j-th expert of token t
    order = all slots by expert, the slots of one expert rising             (moe_align)
    starts[e] = the number of slots of experts before e: e serves order[starts[e] : starts[e + 1]]
    y[t] = sum_j x[t, j]                                                    (moe_sum)

T tokens · k experts of a token · E experts · S = T k slots · D hidden. moe_align is exact, and its order is
unique: the same tokens always meet in the same tile. moe_sum adds in float32 (float64 stays float64) and
rounds once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.providers import PROVIDERS


def _fake_align(ids_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    sizes = (ids_TK.numel(), num_experts + 1)
    order_S, starts_E1 = (ids_TK.new_empty(size, dtype=torch.int32) for size in sizes)
    return order_S, starts_E1


def _reference_moe_align(ids_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    ids_S, order_S = ids_TK.flatten().sort(stable=True)
    experts_E1 = torch.arange(num_experts + 1, dtype=ids_S.dtype, device=ids_S.device)
    return order_S.to(torch.int32), torch.searchsorted(ids_S, experts_E1, out_int32=True)


def _reference_moe_sum(x_TKD: Tensor) -> Tensor:
    return x_TKD.to(torch.promote_types(x_TKD.dtype, torch.float32)).sum(1).to(x_TKD.dtype)


def _torch_moe_sum(x_TKD: Tensor) -> Tensor:
    return x_TKD.sum(1)


_moe_align = Kernel(
    "moe_align",
    "(Tensor ids, int num_experts) -> (Tensor, Tensor)",
    _reference_moe_align,
    fake=_fake_align,
    implementations=(Implementation("triton", f"{__name__}_triton"),),
    rows=lambda ids_TK, num_experts: ids_TK.numel(),
)

_moe_sum = Kernel(
    "moe_sum",
    "(Tensor x) -> Tensor",
    _reference_moe_sum,
    fake=lambda x_TKD: x_TKD.new_empty((x_TKD.shape[0], x_TKD.shape[2])),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch_moe_sum, devices=("cpu", "cuda")),
        Implementation("sgl_kernel", f"{PROVIDERS}.sgl_kernel", requires=("sgl_kernel",), extra="sgl-kernel"),
    ),
    rows=lambda x_TKD: x_TKD.shape[0],
)


def moe_align(ids_TK: Tensor, num_experts: int, *, impl: str | None = None) -> tuple[Tensor, Tensor]:
    """(order [S] int32, starts [E+1] int32) of ids [T, k] int32, contiguous, each in [0, E).

    Raises KernelError when `impl` cannot serve the call.
    """
    return _moe_align(ids_TK, num_experts, impl=impl)


def moe_sum(x_TKD: Tensor, *, impl: str | None = None) -> Tensor:
    """[T, k, D], contiguous -> [T, D] in x's dtype. Raises KernelError when `impl` cannot serve the call."""
    return _moe_sum(x_TKD, impl=impl)
