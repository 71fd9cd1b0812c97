"""Calls of the kernels of nets over short sequences, with their answers by independent formulas in float64.

B sequences · C channels in · N channels out · F frames · K taps
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.pointwise_cases import Arguments, KernelCase, randn

Shape = tuple[int, int, int, int, int, int, int]  # B, C, N, F, K, stride, padding

# Odd ones; the last has more products than a program holds at a time, and two tiles of frames.
CONVOLUTIONS: list[Shape] = [
    (2, 5, 7, 11, 3, 2, 1),
    (3, 4, 9, 4, 5, 1, 2),
    (1, 6, 3, 5, 1, 1, 0),
    (2, 170, 5, 23, 5, 1, 2),
]
TRANSPOSED: list[Shape] = [
    (2, 5, 7, 4, 4, 2, 1),
    (1, 3, 9, 7, 3, 3, 0),
    (3, 4, 2, 5, 5, 1, 2),
    (2, 300, 3, 9, 4, 2, 1),
]
NORMS = [(2, 24, 16, 8), (3, 48, 4, 8), (1, 30, 7, 5), (2, 8, 1, 2)]  # B, C, F, groups


def convolution_cases(shapes: list[Shape], transposed: list[Shape]) -> list[KernelCase]:
    def make(b: int, c: int, n: int, f: int, k: int, *how: int, flip: bool, frames_last: bool = True):
        def arguments(dt: torch.dtype) -> Arguments:
            x = randn(b, c, f, dtype=dt) if frames_last else randn(b, f, c, dtype=dt).transpose(1, 2)
            weight = randn(*((c, n) if flip else (n, c)), k, dtype=dt, seed=1)
            return (x, weight, randn(n, dtype=dt, seed=2), *how)

        return arguments

    def taps(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> tuple[Tensor, ...]:
        """Each output frame by itself."""
        x, weight, bias = F.pad(x.double(), (padding, padding)), weight.double(), bias.double()
        starts = range(0, x.shape[-1] - weight.shape[-1] + 1, stride)
        frames = [
            torch.einsum("bck,nck->bn", x[..., s : s + weight.shape[-1]], weight) + bias for s in starts
        ]
        return (torch.stack(frames, -1),)

    def spread(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> tuple[Tensor, ...]:
        """A convolution of the frames with zeros between them, by the taps from last to first."""
        clips, channels, frames = x.shape
        wide = torch.zeros(clips, channels, (frames - 1) * stride + 1, dtype=torch.float64)
        wide[..., ::stride] = x.double()
        return taps(wide, weight.transpose(0, 1).flip(-1), bias, 1, weight.shape[-1] - 1 - padding)

    return [
        *(KernelCase("conv1d", f"{s}", make(*s, flip=False), taps) for s in shapes),
        KernelCase("conv1d", "channels-last", make(*shapes[0], flip=False, frames_last=False), taps),
        *(KernelCase("conv_transpose1d", f"{s}", make(*s, flip=True), spread) for s in transposed),
    ]


def film_cases(shapes: list[tuple[int, int, int, int]]) -> list[KernelCase]:
    def answer(
        x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor | None, shift: Tensor | None,
        residual: Tensor | None, groups: int, eps: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        parts = []
        for part in x.double().unflatten(1, (groups, -1)).unbind(1):
            variance, mean = torch.var_mean(part, (1, 2), correction=0, keepdim=True)
            parts.append((part - mean) / (variance + eps).sqrt())
        n = torch.cat(parts, 1) * weight.double()[:, None] + bias.double()[:, None]
        y = n * torch.tanh(torch.logaddexp(torch.zeros((), dtype=torch.float64), n))
        if scale is not None and shift is not None:
            y = y * scale.double()[..., None] + shift.double()[..., None]
        return (y if residual is None else y + residual.double(),)

    def make(
        b: int, c: int, f: int, groups: int, conditioned: bool, added: bool, mean: float = 0.0
    ) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            film = randn(b, 2 * c + 3, dtype=dt, seed=3)[:, 3:].chunk(2, -1) if conditioned else (None, None)
            residual = randn(b, c, f, dtype=dt, seed=4) if added else None
            norm = (randn(c, dtype=dt, seed=1) + 1, randn(c, dtype=dt, seed=2))
            return (randn(b, c, f, dtype=dt) + mean, *norm, *film, residual, groups, 1e-5)

        return arguments

    kinds = {"alone": (False, False), "film": (True, False), "residual": (False, True), "both": (True, True)}
    return [
        *(
            KernelCase("group_norm_film", f"{s}-{kind}", make(*s, *flags), answer)
            for s, (kind, flags) in zip(shapes, kinds.items())
        ),
        KernelCase("group_norm_film", "large-mean", make(*shapes[0], True, True, 30.0), answer),
    ]
