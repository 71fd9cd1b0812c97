"""march_rays in Triton: a ray for each lane, which goes from place to place and passes free cells at once.

A free cell is left for the last place before its exit or the one behind this, whichever is later, and so is a
free cell of a coarser cascade around it: a place in it that roundings let a lane see again is free once more.
So the samples are those of a walk from place to place.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels.init_rays import S_MAX, S_MIN, bends, is_even
from fastkernels.kernels.occupancy import cascades_of, side_of

BLOCK = 64  # rays
_FAR = 1e30


def unsupported(kernel: str, *args: Any) -> str | None:
    floats = [*args[:3]]
    if wrong := {tensor.dtype for tensor in floats} - {torch.float32}:
        return f"computes in float32, not {wrong.pop()}"
    if not all(tensor.is_contiguous() for tensor in args[:5]):
        return "needs contiguous tensors"
    return None


@triton.jit
def _distance(n, rate, first, last, NEAR: tl.constexpr, FAR: tl.constexpr, S_MIN: tl.constexpr,
              S_MAX: tl.constexpr, IS_EVEN: tl.constexpr):  # fmt: skip
    if IS_EVEN:
        return n * S_MIN
    found = tl.exp(tl.minimum(tl.maximum(n, first), last) * rate)
    found = tl.where(n <= first, (n - first) * S_MIN + NEAR, found)
    return tl.where(n > last, (n - last) * S_MAX + FAR, found)


@triton.jit
def _place(t, rate, first, last, NEAR: tl.constexpr, FAR: tl.constexpr, S_MIN: tl.constexpr,
           S_MAX: tl.constexpr, IS_EVEN: tl.constexpr):  # fmt: skip
    if IS_EVEN:
        return t / S_MIN
    found = tl.log(tl.minimum(tl.maximum(t, NEAR), FAR)) / rate
    found = tl.where(t <= NEAR, (t - NEAR) / S_MIN + first, found)
    return tl.where(t > FAR, (t - FAR) / S_MAX + last, found)


@triton.jit
def _spread(x):
    x = (x | (x << 16)) & 0x030000FF
    x = (x | (x << 8)) & 0x0300F00F
    x = (x | (x << 4)) & 0x030C30C3
    return (x | (x << 2)) & 0x09249249


@triton.jit
def _is_occupied(cells, x, y, z, is_asked):
    bit = _spread(x) | (_spread(y) << 1) | (_spread(z) << 2)
    byte = tl.load(cells + (bit >> 3), mask=is_asked, other=0)
    return ((byte.to(tl.int32) >> (bit & 7)) & 1) != 0


@triton.jit
def _exit(at, direction, half, cell, SIDE: tl.constexpr, FAR_AWAY: tl.constexpr):
    """How far along a ray the wall of this cell is, on one axis. half: of the cascade's side."""
    wall = ((cell + tl.where(direction > 0, 1, 0)).to(tl.float32) / SIDE - 0.5) * (2.0 * half)
    is_level = direction == 0.0
    return tl.where(is_level, FAR_AWAY, (wall - at) / tl.where(is_level, 1.0, direction))


@triton.jit(do_not_specialize=["rays"])
def _march(origins, directions, starts, steps, grid, out_x, out_deltas, out_steps, rays, low, high, size,
           rate, first, last, SAMPLES: tl.constexpr, CASCADES: tl.constexpr, SIDE: tl.constexpr,
           NEAR: tl.constexpr, FAR: tl.constexpr, S_MIN: tl.constexpr, S_MAX: tl.constexpr,
           IS_EVEN: tl.constexpr, FAR_AWAY: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    ray = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = ray < rays
    ox = tl.load(origins + 3 * ray, mask=is_there, other=0.0)
    oy = tl.load(origins + 3 * ray + 1, mask=is_there, other=0.0)
    oz = tl.load(origins + 3 * ray + 2, mask=is_there, other=0.0)
    dx = tl.load(directions + 3 * ray, mask=is_there, other=1.0)
    dy = tl.load(directions + 3 * ray + 1, mask=is_there, other=1.0)
    dz = tl.load(directions + 3 * ray + 2, mask=is_there, other=1.0)
    start = tl.load(starts + ray, mask=is_there, other=0.0)
    step = tl.load(steps + ray, mask=is_there, other=-1)
    # Directions are of length 1, so a ray is outside from here on. One of length 0 would never leave the box.
    reach = tl.sqrt((ox - 0.5) * (ox - 0.5) + (oy - 0.5) * (oy - 0.5) + (oz - 0.5) * (oz - 0.5)) + size
    found = tl.zeros([BLOCK], tl.int32)
    goes_on = step >= 0
    left = tl.max(goes_on.to(tl.int32), 0)
    while left > 0:
        n = start + step.to(tl.float32)
        t = _distance(n, rate, first, last, NEAR, FAR, S_MIN, S_MAX, IS_EVEN)
        px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
        is_in = (px >= low) & (px <= high) & (py >= low) & (py <= high) & (pz >= low) & (pz <= high)
        goes_on = goes_on & is_in & (t <= reach)
        x, y, z = px - 0.5, py - 0.5, pz - 0.5
        largest = tl.maximum(tl.maximum(tl.abs(x), tl.abs(y)), tl.abs(z))
        mip = tl.zeros([BLOCK], tl.int32)
        for m in tl.static_range(CASCADES - 1):
            mip += (largest >= 0.5 * (1 << m)).to(tl.int32)
        # From the place's own cascade up to the coarsest whose cell is free as well.
        is_free = goes_on
        is_taken = goes_on & (found < 0)
        ahead = tl.zeros([BLOCK], tl.float32)
        for m in tl.static_range(CASCADES):
            half = 0.5 * (1 << m)
            cx = ((x / (2.0 * half) + 0.5) * SIDE).to(tl.int32)
            cy = ((y / (2.0 * half) + 0.5) * SIDE).to(tl.int32)
            cz = ((z / (2.0 * half) + 0.5) * SIDE).to(tl.int32)
            is_cell = (cx < SIDE) & (cy < SIDE) & (cz < SIDE)
            is_looked_at = is_free & (mip <= m)
            ix, iy, iz = tl.minimum(cx, SIDE - 1), tl.minimum(cy, SIDE - 1), tl.minimum(cz, SIDE - 1)
            ix, iy, iz = tl.maximum(ix, 0), tl.maximum(iy, 0), tl.maximum(iz, 0)
            is_full = _is_occupied(grid + m * (SIDE * SIDE * SIDE // 8), ix, iy, iz, is_looked_at & is_cell)
            is_taken = is_taken | (is_looked_at & is_full & (mip == m))
            is_free = is_free & ((mip > m) | (is_full == 0))
            wall = tl.minimum(_exit(x, dx, half, cx, SIDE, FAR_AWAY), _exit(y, dy, half, cy, SIDE, FAR_AWAY))
            wall = tl.minimum(wall, _exit(z, dz, half, cz, SIDE, FAR_AWAY))
            ahead = tl.where(is_looked_at & is_free & is_cell, wall, ahead)
        slot = ray * SAMPLES + found
        tl.store(out_x + 3 * slot, (px - low) / size, mask=is_taken)
        tl.store(out_x + 3 * slot + 1, (py - low) / size, mask=is_taken)
        tl.store(out_x + 3 * slot + 2, (pz - low) / size, mask=is_taken)
        after = _distance(n + 1.0, rate, first, last, NEAR, FAR, S_MIN, S_MAX, IS_EVEN)
        tl.store(out_deltas + slot, after - t, mask=is_taken)
        found += is_taken.to(tl.int32)
        exit_n = _place(t + tl.maximum(ahead, 0.0), rate, first, last, NEAR, FAR, S_MIN, S_MAX, IS_EVEN)
        # The last place before the exit: one short of it is free and only costs a look.
        passed = tl.floor(tl.minimum(exit_n - n, 4096.0)).to(tl.int32)
        step = tl.where(goes_on, step + tl.where(is_taken, 1, tl.maximum(passed, 1)), step)
        is_full_ray = found == SAMPLES
        tl.store(out_steps + ray, step, mask=goes_on & is_full_ray)
        goes_on = goes_on & (is_full_ray == 0)
        left = tl.max(goes_on.to(tl.int32), 0)


def march_rays(
    origins_R3: Tensor,
    directions_R3: Tensor,
    starts_R: Tensor,
    steps_R: Tensor,
    density_grid_MB: Tensor,
    aabb_scale: int,
    cone_angle: float,
    num_samples: int,
) -> tuple[Tensor, Tensor, Tensor]:
    rays, new = len(origins_R3), origins_R3.new_zeros
    x_RK3, deltas_RK = new(rays, num_samples, 3), new(rays, num_samples)
    next_R = torch.full_like(steps_R, -1)
    if rays:
        rate, first, last = (0.0, 0.0, 0.0) if is_even(cone_angle) else bends(cone_angle)
        near, far = (0.0, 0.0) if is_even(cone_angle) else (S_MIN / rate, S_MAX / rate)
        low, high = 0.5 - 0.5 * aabb_scale, 0.5 + 0.5 * aabb_scale
        _march[(triton.cdiv(rays, BLOCK),)](
            origins_R3, directions_R3, starts_R, steps_R, density_grid_MB, x_RK3, deltas_RK, next_R, rays,
            low, high, float(aabb_scale), rate, first, last, SAMPLES=num_samples,
            CASCADES=cascades_of(aabb_scale), SIDE=side_of(density_grid_MB, aabb_scale), NEAR=near, FAR=far,
            S_MIN=S_MIN, S_MAX=S_MAX, IS_EVEN=is_even(cone_angle), FAR_AWAY=_FAR, BLOCK=BLOCK, num_warps=2,
        )  # fmt: skip
    return x_RK3, deltas_RK, next_R
