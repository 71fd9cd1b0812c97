"""Calls of the kernels that vision transformers add, with their answers by independent formulas in float64.

T tokens · D width · H heads · K head dim · P positions
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.pointwise_cases import Arguments, KernelCase, randn


def scaled_add_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(x: Tensor, scale: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        return (torch.einsum("...d,d->...d", x.double(), scale.double()) + residual.double(),)

    def make(t: int, d: int) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (randn(t, d, dtype=dt), randn(d, dtype=dt, seed=1), randn(t, d, dtype=dt, seed=2))

    def columns(dt: torch.dtype) -> Arguments:
        x, scale, residual = make(6, 96)(dt)
        return x[:, 8:72], scale[:64], residual[:, 16:80]

    def part(dt: torch.dtype) -> Arguments:
        """Tokens behind the first ones of each image."""
        x, residual = randn(3, 9, 24, dtype=dt), randn(3, 8, 24, dtype=dt, seed=2)
        return x[:, 4:], randn(24, dtype=dt, seed=1), residual[:, :5]

    return [
        *(KernelCase("scaled_add", f"T{t}-D{d}", make(t, d), answer) for t, d in shapes),
        KernelCase("scaled_add", "columns", columns, answer),
        KernelCase("scaled_add", "part", part, answer),
    ]


def scaled_add_layer_norm_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(
        x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, scale: Tensor
    ) -> tuple[Tensor, ...]:
        total = (x.double() * scale.double() + residual.double()).to(x.dtype).double()
        if not x.numel():
            return total, total
        variance, mean = torch.var_mean(total, dim=-1, correction=0, keepdim=True)
        return (total - mean) / torch.sqrt(variance + eps) * weight.double() + bias.double(), total

    def make(t: int, d: int) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (
            randn(t, d, dtype=dt),
            randn(t, d, dtype=dt, seed=3, scale=30),
            randn(d, dtype=dt, seed=1) + 1,
            randn(d, dtype=dt, seed=2),
            1e-5,
            randn(d, dtype=dt, seed=4, scale=4),
        )

    return [KernelCase("add_layer_norm", f"scaled-T{t}-D{d}", make(t, d), answer) for t, d in shapes]


def rope_by_feature_cases(shapes: list[tuple[int, int, int]]) -> list[KernelCase]:
    """Shapes (T, H, K)."""
    positions = 40

    def answer(position: Tensor, q: Tensor, k: Tensor, cos_sin: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos_sin.double()[position.long()].chunk(2, dim=-1)

        def turned(x: Tensor) -> Tensor:
            """Feature by feature: a matrix for each token, of which a pair's block is no rotation."""
            size = x.shape[-1]
            matrix = torch.zeros(len(x), size, size, dtype=torch.float64)
            for d in range(size):
                matrix[:, d, d] = cos[:, d]
                other, sign = (d + 1, -1) if d % 2 == 0 else (d - 1, 1)
                matrix[:, d, other] = sign * sin[:, d]
            return torch.einsum("tde,the->thd", matrix, x.double())

        return turned(q), turned(k)

    def make(
        t: int, h: int, k: int, *, integer: torch.dtype = torch.int64
    ) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            """q and k are views of one packed projection."""
            generator = torch.Generator().manual_seed(3)
            position = torch.randint(0, positions, (t,), generator=generator, dtype=integer)
            q, key, _ = randn(t, 3, h, k, dtype=dt).unbind(1)
            angles = randn(positions, k, dtype=torch.float64, seed=3, scale=math.pi)
            wide = torch.float64 if dt == torch.float64 else torch.float32
            return position, q, key, torch.cat((angles.cos(), angles.sin()), dim=-1).to(wide)

        return arguments

    return [
        *(KernelCase("rope_by_feature", "x".join(map(str, shape)), make(*shape), answer) for shape in shapes),
        KernelCase("rope_by_feature", "int32", make(5, 4, 16, integer=torch.int32), answer),
    ]
