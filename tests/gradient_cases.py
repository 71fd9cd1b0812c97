"""Calls of the kernels of a gradient step, with their answers by torch.autograd in float64.

T tokens · S keys · W keys of a window · D width · F width of a half · V vocabulary · H heads · K head dim
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.pointwise_cases import Arguments, KernelCase, randn


def gradients(function: Callable[..., Tensor], grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of sum(grad * function(inputs)), by each of the inputs."""
    leaves = [x.double().detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, grad.double())


def windowed(q: Tensor, k: Tensor, scale: float, window: int) -> Tensor:
    """Scores [H, T, S] with -inf where a key is not seen."""
    away = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
    scores = torch.einsum("thk,shk->hts", q, k) * scale
    return scores.masked_fill((away < 0) | (away >= window), -torch.inf)


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> Tensor:
    return torch.einsum("hts,shk->thk", windowed(q, k, scale, window).softmax(-1), v)


def attention_arguments(
    t: int, s: int, h: int, k: int, window: int, packed: bool = False
) -> Callable[[torch.dtype], Arguments]:
    """packed: queries are a part of [q | k | v], keys the last of a longer cache."""

    def make(dt: torch.dtype) -> Arguments:
        q = randn(t, 3, h, k, dtype=dt, seed=1)[:, 1] if packed else randn(t, h, k, dtype=dt, seed=1)
        keys, values = (randn(s + 5 * packed, h, k, dtype=dt, seed=i)[5 * packed :] for i in (2, 3))
        return q, keys, values, 1.5 * k**-0.5, window

    return make


def sliding_cases(shapes: list[tuple[int, int, int, int, int]]) -> list[KernelCase]:
    """Shapes (T, S, H, K, W)."""

    def answer(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> tuple[Tensor, ...]:
        return (attended(q.double(), k.double(), v.double(), scale, window),)

    return [
        *(KernelCase("sliding_attention", f"{s}", attention_arguments(*s), answer) for s in shapes),
        KernelCase("sliding_attention", "packed", attention_arguments(9, 23, 2, 16, 12, packed=True), answer),
    ]


def sliding_grad_cases(shapes: list[tuple[int, int, int, int, int]]) -> list[KernelCase]:
    def answer(do: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int) -> tuple[Tensor, ...]:
        dq, dk, dv = gradients(lambda q, k, v: attended(q, k, v, scale, window), do, q, k, v)
        return dq, dk[len(k) - len(q) :], dv[len(k) - len(q) :]

    def make(*shape: int, packed: bool = False) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            q, *rest = attention_arguments(*shape, packed=packed)(dt)  # type: ignore[misc]
            return randn(*q.shape, dtype=dt, seed=4), q, *rest

        return arguments

    return [
        *(KernelCase("sliding_attention_grad", f"{s}", make(*s), answer) for s in shapes),
        KernelCase("sliding_attention_grad", "packed", make(9, 23, 2, 16, 12, packed=True), answer),
    ]


def norm_grad_cases(shapes: list[tuple[int, ...]]) -> list[KernelCase]:
    def answer(dy: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> tuple[Tensor]:
        (dx,) = gradients(lambda x: F.rms_norm(x, weight.shape, weight.double(), eps), dy, x)
        return (dx if residual is None else dx + residual.double(),)

    def make(shape: tuple[int, ...], added: bool, size: float = 1.0) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            residual = randn(*shape, dtype=dt, seed=4) if added else None
            x = randn(*shape, dtype=dt, seed=1, scale=size)
            return randn(*shape, dtype=dt), x, randn(shape[-1], dtype=dt, seed=2) + 1, 1e-6, residual

        return arguments

    def heads(dt: torch.dtype) -> Arguments:
        """The keys of a packed [q | k | v]."""
        x = randn(5, 3, 4, 16, dtype=dt, seed=1)[:, 1]
        return randn(5, 4, 16, dtype=dt), x, randn(16, dtype=dt, seed=2) + 1, 1e-6, None

    return [
        *(KernelCase("rms_norm_grad", f"{s}", make(s, i % 2 == 0), answer) for i, s in enumerate(shapes)),
        KernelCase("rms_norm_grad", "small", make((3, 64), True, 1e-2), answer),
        KernelCase("rms_norm_grad", "heads", heads, answer),
    ]


def glu_grad_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(dy: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        def gated(x: Tensor) -> Tensor:
            gate, up = x.chunk(2, -1)
            return gate / (1 + torch.exp(-gate)) * up

        return gradients(gated, dy, x)

    return [
        KernelCase(
            "glu_grad",
            f"{t}x{f}",
            lambda dt, t=t, f=f: (randn(t, f, dtype=dt), randn(t, 2 * f, dtype=dt, seed=1, scale=2)),
            answer,
        )
        for t, f in shapes
    ]


def entropy_arguments(t: int, v: int, size: float) -> Callable[[torch.dtype], Arguments]:
    def make(dt: torch.dtype) -> Arguments:
        targets = torch.randint(v, (t,), generator=torch.Generator().manual_seed(3))
        if t > 1:
            targets[0], targets[-1] = 0, v - 1
        return randn(t, v, dtype=dt, scale=size), targets

    return make


def entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """nll and the gradient of its mean in float64."""
    x = logits.double().requires_grad_()
    nll = torch.logsumexp(x, -1) - x[torch.arange(len(x)), targets]
    (slope,) = torch.autograd.grad(nll.mean(), x)
    return nll.detach(), slope
