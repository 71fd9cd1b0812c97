"""The next samples of rays: places on their lattice of steps that lie in occupied cells.

    t_k = t(start + k),  p_k = o + t_k d                     k = step, step + 1, .. while p_k is in the box
    samples: the first K whose cell is occupied,  u = (p_k - low) / aabb_scale,  delta = t_{k+1} - t_k

    m = clamp(exponent(max |p - 0.5|) + 1, 0, M - 1),  cell = trunc(((p - 0.5) 2^-m + 0.5) S)

R rays · K samples of each · M cascades of S^3 cells (occupancy.py) · the box is 0.5 +- aabb_scale / 2, t is
`distance_of` (init_rays.py). A ray's next step is the one behind its K-th sample, and -1 where it has fewer:
its other places are zero, and so are those of rays whose step is below 0. Computed in float32 (float64 stays
float64).

Roundings may decide in which cell a place lies: `other_way`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.init_rays import distance_of
from fastkernels.kernels.occupancy import cascades_of, morton, side_of

_AT_ONCE = 16  # places of a ray for each sample
_undecided = 0.0  # how far from a wall, relative to the box, a place counts as behind it

Samples = tuple[Tensor, Tensor, Tensor]


def _reference(
    origins_R3: Tensor,
    directions_R3: Tensor,
    starts_R: Tensor,
    steps_R: Tensor,
    density_grid_MB: Tensor,
    aabb_scale: int,
    cone_angle: float,
    num_samples: int,
) -> Samples:
    """Every place of the lattice is looked at, some of every ray at once, until each ray has ended."""
    places = _AT_ONCE * num_samples
    rays, side = len(origins_R3), side_of(density_grid_MB, aabb_scale)
    u_RK3 = origins_R3.new_zeros(rays, num_samples, 3)
    deltas_RK = origins_R3.new_zeros(rays, num_samples)
    next_R = torch.full_like(steps_R, -1)
    low, high = 0.5 - 0.5 * aabb_scale, 0.5 + 0.5 * aabb_scale
    slack = _undecided * max(1.0, abs(low))
    # Directions are of length 1, so a ray is outside from here on. One of length 0 would never leave the box.
    reach_R = (origins_R3 - 0.5).norm(dim=-1) + aabb_scale
    live = (steps_R >= 0).nonzero().squeeze(1)
    at, found = steps_R[live].long(), torch.zeros_like(live)
    while len(live):
        k_RP = at[:, None] + torch.arange(places, device=at.device)
        n_RP = starts_R[live, None] + k_RP
        t_RP = distance_of(n_RP, cone_angle)
        p_RP3 = origins_R3[live, None] + t_RP[..., None] * directions_R3[live, None]
        is_in = ((p_RP3 >= low - slack) & (p_RP3 <= high + slack)).all(-1) & (t_RP <= reach_R[live, None])
        is_taken = is_in & _occupied(p_RP3, density_grid_MB, side, aabb_scale, slack)
        rank_RP = is_taken.cumsum(-1) + found[:, None] - 1
        is_taken &= rank_RP < num_samples
        ray, place = is_taken.nonzero(as_tuple=True)
        slot = rank_RP[ray, place]
        u_RK3[live[ray], slot] = (p_RP3[ray, place] - low) / aabb_scale
        after = distance_of(n_RP[ray, place] + 1, cone_angle)
        deltas_RK[live[ray], slot] = after - t_RP[ray, place]
        is_last = slot == num_samples - 1
        next_R[live[ray[is_last]]] = (k_RP[ray[is_last], place[is_last]] + 1).to(next_R.dtype)
        found = found + is_taken.sum(-1)
        goes_on = is_in[:, -1] & (found < num_samples)
        live, at, found = live[goes_on], at[goes_on] + places, found[goes_on]
    return u_RK3, deltas_RK, next_R


def _occupied(p: Tensor, density_grid_MB: Tensor, side: int, aabb_scale: int, slack: float) -> Tensor:
    """[..] of places [.., 3]"""
    centred = p - 0.5
    largest = centred.abs().amax(-1)
    if slack:  # as if a wall between two cascades were on the other side
        nearest = torch.exp2(largest.log2().round())
        largest = torch.where((largest - nearest).abs() <= slack, 2 * nearest - largest, largest)
    mip = (torch.frexp(largest).exponent + 1).clamp(0, cascades_of(aabb_scale) - 1)
    at = (centred * torch.exp2(-mip.to(p.dtype))[..., None] + 0.5) * side
    if slack:
        wall = at.round()
        is_near = (at - wall).abs() <= slack * side * torch.exp2(-mip.to(p.dtype))[..., None]
        at = torch.where(is_near, torch.where(at >= wall, wall - 0.5, wall + 0.5), at)
    cell = at.trunc().long()
    is_there = ((cell >= 0) & (cell < side)).all(-1)
    bit = morton(*cell.clamp(0, side - 1).unbind(-1)) + mip.long() * side**3
    return is_there & (density_grid_MB.flatten()[bit >> 3].long() >> (bit & 7) & 1).bool()


@contextmanager
def other_way(roundings: float) -> Iterator[None]:
    """In the body a place that roundings, of this size in all, could move over a wall is behind it."""
    global _undecided
    _undecided, before = roundings, _undecided
    try:
        yield
    finally:
        _undecided = before


def _fake(origins_R3: Tensor, directions: Tensor, starts: Tensor, steps_R: Tensor, grid: Tensor,
          aabb_scale: int, cone_angle: float, num_samples: int) -> Samples:  # fmt: skip
    new, rays = origins_R3.new_empty, len(origins_R3)
    return new(rays, num_samples, 3), new(rays, num_samples), torch.empty_like(steps_R)


_march_rays = Kernel(
    "march_rays",
    "(Tensor origins, Tensor directions, Tensor starts, Tensor steps, Tensor density_grid, int aabb_scale, "
    "float cone_angle, int num_samples) -> (Tensor, Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(Implementation("triton", f"{__name__}_triton"),),
    rows=lambda origins_R3, *_: len(origins_R3),
    # A ray that looks at nothing reads no cell.
    work=lambda tally, origins, directions, starts, steps, density_grid, *_: tally.look_up(density_grid, 0),
    other_way=other_way,
)


def march_rays(
    origins_R3: Tensor,
    directions_R3: Tensor,
    starts_R: Tensor,
    steps_R: Tensor,
    density_grid_MB: Tensor,
    aabb_scale: int,
    cone_angle: float,
    num_samples: int,
    *,
    impl: str | None = None,
) -> Samples:
    """(u [R, K, 3] in [0, 1], deltas [R, K], steps int32 [R]) of rays as init_rays gives them, steps int32
    [R], density_grid uint8 [M, S^3 / 8].

    Raises ValueError for an aabb_scale that is no power of two and for a grid of another size, KernelError
    when `impl` cannot serve the call.
    """
    side_of(density_grid_MB, aabb_scale)
    return _march_rays(
        origins_R3, directions_R3, starts_R, steps_R, density_grid_MB, aabb_scale, cone_angle, num_samples,
        impl=impl,
    )  # fmt: skip
