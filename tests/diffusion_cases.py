"""Calls of the kernels that text-to-image models add, with their answers by independent formulas in float64.

B requests · L, S tokens of each · D width · H heads · K head dim · Y, X rows and columns · C channels
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.pointwise_cases import Arguments, KernelCase, randn


def modulated_layer_norm_cases(shapes: list[tuple[int, int, int]]) -> list[KernelCase]:
    """Shapes (B, L, D)."""

    def answer(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, ...]:
        x = x.double()
        if not x.numel():
            return (x,)
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        normed = (x - mean) / torch.sqrt(variance + eps)
        return (torch.einsum("bld,bd->bld", normed, 1 + scale.double()) + shift.double()[:, None],)

    def make(b: int, length: int, d: int, size: float = 1.0) -> Callable[[torch.dtype], Arguments]:
        """Scale and shift are parts of one product, as a model has them."""

        def arguments(dt: torch.dtype) -> Arguments:
            shift, scale, _ = randn(b, 3 * d, dtype=dt, seed=1).chunk(3, dim=-1)
            return randn(b, length, d, dtype=dt, scale=size), scale, shift, 1e-6

        return arguments

    def part(dt: torch.dtype) -> Arguments:
        """The tokens of images behind those of their texts."""
        x, scale, shift, eps = make(3, 9, 64)(dt)
        return x[:, 4:], scale, shift, eps

    def case(name: str, arguments: Callable[[torch.dtype], Arguments]) -> KernelCase:
        return KernelCase("modulated_layer_norm", name, arguments, answer)

    return [
        *(case("x".join(map(str, shape)), make(*shape)) for shape in shapes),
        case("part", part),
        case("tiny-values", make(2, 3, 64, size=1e-3)),
        case("large-values", make(2, 3, 64, size=1e3)),
    ]


def rope_pairs_cases(shapes: list[tuple[int, int, int, int]]) -> list[KernelCase]:
    """Shapes (B, S, H, K)."""

    def answer(q: Tensor, k: Tensor, cos_sin: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos_sin.double().chunk(2, dim=-1)
        turn_SJ22 = torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)

        def turned(x: Tensor) -> Tensor:
            pairs = x.double().unflatten(-1, (-1, 2))
            return torch.einsum("sjpr,bshjr->bshjp", turn_SJ22, pairs).flatten(-2)

        return turned(q), turned(k)

    def table(length: int, k: int, dt: torch.dtype) -> Tensor:
        angles = randn(length, k // 2, dtype=torch.float64, seed=3, scale=math.pi)
        wide = torch.float64 if dt == torch.float64 else torch.float32
        return torch.cat((angles.cos(), angles.sin()), dim=-1).to(wide)

    def make(b: int, length: int, h: int, k: int) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (
            randn(b, length, h, k, dtype=dt),
            randn(b, length, h, k, dtype=dt, seed=1),
            table(length, k, dt),
        )

    def packed(dt: torch.dtype) -> Arguments:
        """Views of one product [q | k | v]."""
        q, k, _ = randn(2, 5, 3, 4, 16, dtype=dt).unbind(2)
        return q, k, table(5, 16, dt)

    return [
        *(KernelCase("rope_pairs", "x".join(map(str, shape)), make(*shape), answer) for shape in shapes),
        KernelCase("rope_pairs", "packed", packed, answer),
    ]


def sinusoidal_cases() -> list[KernelCase]:
    def answer(v: Tensor, dim: int, period: float, highest: float) -> tuple[Tensor, ...]:
        rates = [highest * period ** (-2 * k / dim) for k in range(dim // 2)]
        rows = [[math.cos(x * f) for f in rates] + [math.sin(x * f) for f in rates] for x in v.tolist()]
        return (torch.tensor(rows, dtype=torch.float64).view(len(v), dim),)

    def values(*numbers: float) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (torch.tensor(numbers, dtype=dt), 256, 10000.0, 1.0)

    return [
        KernelCase("sinusoidal", "none", values(), answer),
        KernelCase("sinusoidal", "small", values(0.0, 0.25, 1.0), answer),
        KernelCase(
            "sinusoidal", "odd", lambda dt: (torch.tensor([3.0, 7.0], dtype=dt), 10, 100.0, 1.0), answer
        ),
        KernelCase("sinusoidal", "fast", lambda dt: (torch.tensor([0.3], dtype=dt), 32, 1e3, 1571.0), answer),
    ]


def group_norm_cases(shapes: list[tuple[int, int, int, int, int]]) -> list[KernelCase]:
    """Shapes (B, Y, X, C, groups), with an activation and without."""

    def answer(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, activation: str
    ) -> tuple[Tensor, ...]:
        if not x.numel():
            return (x.double(),)
        x_BCYX, weight, bias = x.double().permute(0, 3, 1, 2), weight.double(), bias.double()
        n = F.group_norm(x_BCYX.contiguous(), groups, weight, bias, eps).permute(0, 2, 3, 1)
        return (F.silu(n) if activation == "silu" else n,)

    def make(
        b: int, y: int, x: int, c: int, groups: int, activation: str, mean: float = 0.0
    ) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (
            randn(b, y, x, c, dtype=dt) + mean,
            randn(c, dtype=dt, seed=1) + 2,
            randn(c, dtype=dt, seed=2),
            groups,
            1e-6,
            activation,
        )

    def case(name: str, *shape: Any, **how: float) -> KernelCase:
        return KernelCase("group_norm", name, make(*shape, **how), answer)

    return [
        *(
            case(f"{'x'.join(map(str, shape))}-{activation}", *shape, activation)
            for shape in shapes
            for activation in ("none", "silu")
        ),
        case("large-mean", 2, 9, 40, 24, 4, "none", mean=64.0),
    ]


def upsample_cases(shapes: list[tuple[int, int, int, int]]) -> list[KernelCase]:
    """Shapes (B, Y, X, C)."""

    def answer(x: Tensor) -> tuple[Tensor, ...]:
        _, y, w, _ = x.shape
        rows, columns = (
            torch.tensor([i // 2 for i in range(2 * side)], dtype=torch.int64) for side in (y, w)
        )
        return (x.double()[:, rows][:, :, columns],)

    return [
        KernelCase("upsample", "x".join(map(str, s)), lambda dt, s=s: (randn(*s, dtype=dt),), answer)
        for s in shapes
    ]


def frame_attention_cases(shapes: list[tuple[int, int, int, int, int]]) -> list[KernelCase]:
    """Shapes (N, T, S, H, K): T new frames, the last of S."""

    def answer(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, ...]:
        q, k, v = (x.double() for x in (q, k, v))
        rows = []
        for t in range(q.shape[1]):
            seen = k.shape[1] - q.shape[1] + t + 1
            weights = torch.softmax(scale * torch.einsum("nhk,nshk->nhs", q[:, t], k[:, :seen]), dim=-1)
            rows.append(torch.einsum("nhs,nshk->nhk", weights, v[:, :seen]))
        return (torch.stack(rows, dim=1),)

    def make(n: int, new: int, frames: int, h: int, k: int) -> Callable[[torch.dtype], Arguments]:
        """Queries are a part of a product; keys and values the first frames of longer caches."""

        def arguments(dt: torch.dtype) -> Arguments:
            q = randn(n, new, 3, h, k, dtype=dt)[:, :, 0]
            caches = (randn(n, frames + 2, h, k, dtype=dt, seed=seed)[:, :frames] for seed in (1, 2))
            return q, *caches, k**-0.5

        return arguments

    return [
        KernelCase("frame_attention", "x".join(map(str, shape)), make(*shape), answer) for shape in shapes
    ]
