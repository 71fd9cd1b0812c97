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

# Names of torch, not torch itself: importing the implementation `.torch` binds that name here.
from torch import Tensor, int32

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.moe_permute import reference


def _fake_align(ids_TK: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    sizes = (ids_TK.numel(), num_experts + 1)
    order_S, starts_E1 = (ids_TK.new_empty(size, dtype=int32) for size in sizes)
    return order_S, starts_E1


_moe_align = Kernel(
    "moe_align",
    "(Tensor ids, int num_experts) -> (Tensor, Tensor)",
    reference.moe_align,
    fake=_fake_align,
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda ids_TK, num_experts: ids_TK.numel(),
)

_moe_sum = Kernel(
    "moe_sum",
    "(Tensor x) -> Tensor",
    reference.moe_sum,
    fake=lambda x_TKD: x_TKD.new_empty((x_TKD.shape[0], x_TKD.shape[2])),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
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
