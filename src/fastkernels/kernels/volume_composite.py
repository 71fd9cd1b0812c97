"""Samples of rays added to what each ray has seen so far, front to back.

    alpha = 1 - exp(-exp(raw.density) delta),  w = alpha (1 - A)
    C += w sigmoid(raw.colour),  A += w                    then, where A > 0.99:  C = C / A,  A = 1

R rays · K samples in order · raw: logits of red, green and blue, then of density · C, A: rgba. Where A is 1
nothing is added any more, so an ended ray stays as it is; so does a ray at a sample of delta 0. Computed in
float32 (float64 stays float64).

Roundings may decide at which sample a ray ends: `other_way`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

MOST_ALPHA = 0.99
_undecided = 0.0  # how far from the bound a ray's A counts as on its other side


def _reference(rgba_R4: Tensor, raw_RK4: Tensor, deltas_RK: Tensor) -> Tensor:
    colour_R3, through = rgba_R4[:, :3], 1 - rgba_R4[:, 3:]
    thickness_RK = torch.where(deltas_RK > 0, raw_RK4[..., 3].exp() * deltas_RK, 0)
    alpha_RK, colour_RK3 = -torch.expm1(-thickness_RK), raw_RK4[..., :3].sigmoid()
    for k in range(deltas_RK.shape[1]):
        weight = alpha_RK[:, k, None] * through
        colour_R3, through = colour_R3 + weight * colour_RK3[:, k], through - weight
        ends = _decided(1 - through > MOST_ALPHA, 1 - through)
        colour_R3 = torch.where(ends, colour_R3 / (1 - through), colour_R3)
        through = torch.where(ends, 0, through)
    return torch.cat((colour_R3, 1 - through), -1)


def _decided(found: Tensor, alpha: Tensor) -> Tensor:
    """Whether alpha is above its bound, or the other way."""
    return found ^ ((alpha - MOST_ALPHA).abs() <= _undecided) if _undecided else found


@contextmanager
def other_way(roundings: float) -> Iterator[None]:
    """In the body a ray that roundings, of this size in all, could end or keep is treated the other way."""
    global _undecided
    _undecided, before = roundings, _undecided
    try:
        yield
    finally:
        _undecided = before


_volume_composite = Kernel(
    "volume_composite",
    "(Tensor rgba, Tensor raw, Tensor deltas) -> Tensor",
    _reference,
    fake=lambda rgba_R4, raw, deltas: torch.empty_like(rgba_R4),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
    ),
    rows=lambda rgba_R4, *_: len(rgba_R4),
    other_way=other_way,
)


def volume_composite(
    rgba_R4: Tensor, raw_RK4: Tensor, deltas_RK: Tensor, *, impl: str | None = None
) -> Tensor:
    """rgba [R, 4], colours weighted by what covers them, of rgba [R, 4], raw [R, K, 4], deltas [R, K].

    Raises KernelError when `impl` cannot serve the call.
    """
    return _volume_composite(rgba_R4, raw_RK4, deltas_RK, impl=impl)
