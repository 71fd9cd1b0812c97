"""Calls of the mixture-of-experts kernels, and their answers token by token in float64.

T tokens · E experts · k experts of a token · S = T k slots · N outputs · K inputs
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels import kernels
from tests.pointwise_cases import randn, to_device


@dataclass(frozen=True)
class Shape:
    """`experts_used`: tokens choose among the first so many; the others stay without a token."""

    tokens: int
    experts: int
    top_k: int
    outputs: int = 24
    inputs: int = 40
    experts_used: int | None = None

    def __str__(self) -> str:
        used = f"-of{self.experts_used}" if self.experts_used else ""
        return f"T{self.tokens}-E{self.experts}-k{self.top_k}-N{self.outputs}-K{self.inputs}{used}"


# One token, experts without tokens, one for all, fewer slots than experts, several tiles of an expert.
SHAPES = [
    Shape(1, 8, 2),
    Shape(5, 4, 2, experts_used=2),
    Shape(7, 4, 1, experts_used=1),
    Shape(3, 60, 4),
    Shape(97, 8, 2, 33, 72),
    Shape(150, 3, 2, 160, 64),
    Shape(0, 4, 2),
]


def ids_of(shape: Shape, seed: int = 0) -> Tensor:
    """int32 [T, k]: distinct experts in each row."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [
        torch.randperm(shape.experts_used or shape.experts, generator=generator)[: shape.top_k]
        for _ in range(shape.tokens)
    ]
    return torch.stack(chosen).to(torch.int32) if chosen else torch.empty(0, shape.top_k, dtype=torch.int32)


def aligned(ids_TK: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """order and starts, by lists."""
    lists: list[list[int]] = [[] for _ in range(experts)]
    for slot, expert in enumerate(ids_TK.flatten().tolist()):
        lists[expert].append(slot)
    starts = [sum(map(len, lists[:e])) for e in range(experts + 1)]
    return torch.tensor([slot for found in lists for slot in found], dtype=torch.int32), torch.tensor(
        starts, dtype=torch.int32
    )


def chosen(logits_TE: Tensor, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """weights [T, k] float64 and ids [T, k], by Python's sort and exp."""
    weights, ids = [], []
    for row in logits_TE.double().tolist():
        best = sorted(range(len(row)), key=lambda e: (-row[e], e))[:top_k]
        exponentials = [math.exp(x - max(row)) for x in row]
        total = sum(exponentials[e] for e in best) if renormalize else sum(exponentials)
        weights.append([exponentials[e] / total for e in best])
        ids.append(best)
    return torch.tensor(weights, dtype=torch.float64).view(-1, top_k), torch.tensor(ids).view(-1, top_k)


def grouped_arguments(
    shape: Shape, dtype: torch.dtype, is_shared: bool, is_weighted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """`is_shared`: a token's slots share a row of x (first product); else every slot has its own."""
    ids_TK = ids_of(shape)
    order_S, starts_E1 = aligned(ids_TK, shape.experts)
    rows = shape.tokens * (1 if is_shared else shape.top_k)
    x_RK = randn(rows, shape.inputs, dtype=dtype)
    weight_ENK = randn(
        shape.experts, shape.outputs, shape.inputs, dtype=dtype, seed=1, scale=shape.inputs**-0.5
    )
    weights_S = randn(ids_TK.numel(), dtype=torch.float32, seed=2).abs() if is_weighted else None
    return x_RK, weight_ENK, order_S, starts_E1, weights_S


def grouped_answer(shape: Shape, x_RK: Tensor, weight_ENK: Tensor, weights_S: Tensor | None) -> Tensor:
    """[S, N] float64, slot by slot."""
    experts_S = ids_of(shape).flatten().tolist()
    share = max(1, len(experts_S) // max(1, len(x_RK)))
    y_SN = torch.zeros(len(experts_S), shape.outputs, dtype=torch.float64)
    for slot, expert in enumerate(experts_S):
        y_SN[slot] = weight_ENK[expert].double() @ x_RK[slot // share].double()
        if weights_S is not None:
            y_SN[slot] *= weights_S[slot].double()
    return y_SN


def shuffled_and_straight(impl: str, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """[97, 2, N] of tokens in another order, and of the same tokens, then put into that order."""
    shape = Shape(97, 8, 2, 33, 72)
    (x, weight, *_), ids_TK = to_device(grouped_arguments(shape, dtype, True, False), device), ids_of(shape)
    shuffle = torch.randperm(97, generator=torch.Generator().manual_seed(5))

    def product(order: Tensor) -> Tensor:
        ids = ids_TK[order].to(device)
        y = kernels.grouped_linear(
            x[order.to(device)], weight, *kernels.moe_align(ids, 8, impl=impl), impl=impl
        )
        return y.view(97, 2, -1).cpu()

    return product(shuffle), product(torch.arange(97))[shuffle]
