"""A ray through each pixel of several cameras, and the first place on the lattice of steps that it takes.

    d = R normalise((x + 0.5 - cx) / fx, (y + 0.5 - cy) / fy, 1)               o = the camera's position
    t = max(entry into the box, 0) + 1e-6,   start = n(t) + ld_random(0, 786433 (x + W y))
    step = 0, or -1 where the point at t is not in the box

C cameras [R | o] · N = C H W rays, those of a camera row by row. The box is 0.5 +- aabb_scale / 2 on each
axis. n(t) is the place of a distance on the lattice (`place_of`): one step is S_MIN long near the camera, and
from there cone_angle times the distance. ld_random shifts every ray's lattice by a part of a step, the same
for each camera. Computed in float32 (float64 stays float64).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

STEPS, CELLS, CASCADES = 1024, 128, 8  # on the unit cube's diagonal; of an occupancy grid's side; at most
S_MIN = math.sqrt(3) / STEPS
S_MAX = S_MIN * 2 ** (CASCADES - 1) * STEPS / CELLS
_NO_CONE = 1e-5  # steps of one length
_NEAR = 1e-6  # behind the entry
_WORD = (1 << 32) - 1
_SEED = 786433
_MIXERS = (0x6C50B47C, 0xB82F1E52, 0xC7AFE638, 0x8D22F6E6)
_SWAPS = ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF))

Rays = tuple[Tensor, Tensor, Tensor, Tensor]


def cone_angle_of(aabb_scale: int) -> float:
    """How much a step grows with the distance: in a scene within the unit cube it does not."""
    return 1 / 256 if aabb_scale > 1 else 0.0


def is_even(cone_angle: float) -> bool:
    """Whether all steps are of one length."""
    return cone_angle <= _NO_CONE


def bends(cone_angle: float) -> tuple[float, float, float]:
    """(l, a, b): steps are of one length below the place a and above b, and distances exp(l n) between."""
    rate = math.log1p(cone_angle)
    return rate, math.log(S_MIN / rate) / rate, math.log(S_MAX / rate) / rate


def place_of(t: Tensor, cone_angle: float) -> Tensor:
    """n(t)"""
    if is_even(cone_angle):
        return t / S_MIN
    rate, first, last = bends(cone_angle)
    near, far = S_MIN / rate, S_MAX / rate
    found = torch.where(t <= near, (t - near) / S_MIN + first, t.clamp(near, far).log() / rate)
    return torch.where(t > far, (t - far) / S_MAX + last, found)


def distance_of(n: Tensor, cone_angle: float) -> Tensor:
    """t(n), the inverse."""
    if is_even(cone_angle):
        return n * S_MIN
    rate, first, last = bends(cone_angle)
    near, far = S_MIN / rate, S_MAX / rate
    found = torch.where(n <= first, (n - first) * S_MIN + near, (n.clamp(first, last) * rate).exp())
    return torch.where(n > last, (n - last) * S_MAX + far, found)


def ld_random(index: int, seed: Tensor) -> Tensor:
    """Numbers below 2^32 of seeds below it, int64: the first Sobol dimension, scrambled by Owen's trees."""
    mixed = seed ^ ((seed << 6) + (seed >> 2) & _WORD)
    return _scrambled(_reversed(_scrambled(torch.full_like(seed, index), seed)), mixed)


def _scrambled(x: Tensor, seed: Tensor) -> Tensor:
    x = _reversed(x) + seed & _WORD
    for mixer in _MIXERS:
        x = x ^ (x * mixer & _WORD)
    return _reversed(x)


def _reversed(x: Tensor) -> Tensor:
    """The 32 bits from the last to the first."""
    for by, mask in _SWAPS:
        x = (x & mask) << by | x >> by & mask
    return x


def _reference(
    cameras_C34: Tensor, Ks_C33: Tensor, width: int, height: int, aabb_scale: int, cone_angle: float
) -> Rays:
    dtype, device = cameras_C34.dtype, cameras_C34.device
    pixel_P = torch.arange(width * height, device=device)
    fx, fy, cx, cy = (Ks_C33[:, i, j, None] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    x_CP = ((pixel_P % width).to(dtype) + 0.5 - cx) / fx
    y_CP = ((pixel_P // width).to(dtype) + 0.5 - cy) / fy
    # A sum of three numbers: no product of matrices, which a GPU might round to fewer bits.
    rows = [[cameras_C34[:, i, j, None] for j in range(4)] for i in range(3)]
    d_CP3 = torch.stack([row[0] * x_CP + row[1] * y_CP + row[2] for row in rows], -1)
    d_CP3 = d_CP3 / d_CP3.square().sum(-1, keepdim=True).sqrt()
    o_CP3 = cameras_C34[:, None, :, 3].expand_as(d_CP3).contiguous()

    low, high = 0.5 - 0.5 * aabb_scale, 0.5 + 0.5 * aabb_scale
    inverse_CP3 = 1 / d_CP3
    entry_CP = torch.minimum((low - o_CP3) * inverse_CP3, (high - o_CP3) * inverse_CP3).amax(-1)
    t_CP = entry_CP.clamp_min(0) + _NEAR
    at_CP3 = o_CP3 + t_CP[..., None] * d_CP3
    inside_CP = ((at_CP3 >= low) & (at_CP3 <= high)).all(-1)
    jitter_P = ld_random(0, pixel_P * _SEED & _WORD).to(dtype) * 2.0**-32
    starts_CP = place_of(t_CP, cone_angle) + jitter_P
    steps_CP = torch.where(inside_CP, 0, -1).to(torch.int32)
    return o_CP3.flatten(0, 1), d_CP3.flatten(0, 1), starts_CP.flatten(), steps_CP.flatten()


def _fake(cameras_C34: Tensor, Ks: Tensor, width: int, height: int, scale: int, cone: float) -> Rays:
    rays, new = len(cameras_C34) * width * height, cameras_C34.new_empty
    return new(rays, 3), new(rays, 3), new(rays), new(rays, dtype=torch.int32)


_init_rays = Kernel(
    "init_rays",
    "(Tensor cameras, Tensor Ks, int width, int height, int aabb_scale, float cone_angle)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(Implementation("inductor", compiled(_reference)),),
    rows=lambda cameras_C34, Ks, width, height, *_: len(cameras_C34) * width * height,
)


def init_rays(
    cameras_C34: Tensor,
    Ks_C33: Tensor,
    width: int,
    height: int,
    aabb_scale: int,
    cone_angle: float,
    *,
    impl: str | None = None,
) -> Rays:
    """(origins [N, 3], unit directions [N, 3], starts [N], steps int32 [N]) of cameras that look along z, x
    to the right and y down, [R | o] from the camera to the space of the box; Ks without skew.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _init_rays(cameras_C34, Ks_C33, width, height, aabb_scale, cone_angle, impl=impl)
