"""Gaussians of a scene as ellipses on the images of several cameras.

    S = M M^T,  M = R(q / |q|) diag(s)                       p = W3 mu + W[:3, 3],  S_c = W3 S W3^T
    u = (fx p.x / p.z + cx, fy p.y / p.z + cy)               J: derivative of u at p, x / z and y / z clamped
    S2 = J S_c J^T + eps2d I                                 conic = (S2_yy, -S2_xy, S2_xx) / det S2
    k = min(3.33, sqrt(2 ln(255 opacity)))                   radii = ceil(k sqrt(S2_xx)), ceil(k sqrt(S2_yy))

C cameras · N Gaussians. x / z is clamped to the image and 0.3 of half its width on either side, in J alone.
Radii are zero of what cannot be seen: p.z outside near to far, det S2 <= 0, opacity below 1/255, no radius
above radius_clip, or a box that misses the image. Where p.z is outside or det S2 <= 0, the other results are
zero, too. Computed in float32 (float64 stays float64).

A radius is a whole number, and roundings may decide which: `other_way`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

LEAST_ALPHA = 1 / 255
MOST_SIGMAS = 3.33
_MARGIN = 0.3  # of half an image's width, beyond its edge
_undecided = 0.0  # how far from a whole number, relative to it, a radius goes the other way

Parts = tuple[Tensor, Tensor, Tensor, Tensor]


def _project(
    means_N3: Tensor,
    quats_N4: Tensor,
    scales_N3: Tensor,
    viewmats_C44: Tensor,
    Ks_C33: Tensor,
    opacities_N: Tensor | None,
    width: int,
    height: int,
    eps2d: float,
    near_plane: float,
    far_plane: float,
    radius_clip: float,
) -> Parts:
    # Scalars of every matrix are written out: Inductor makes one kernel of them, and no product of 3 x 3
    # matrices is worth a launch.
    w, x, y, z = torch.nn.functional.normalize(quats_N4, dim=-1).unbind(-1)
    turn = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    s, mu = scales_N3.unbind(-1), means_N3.unbind(-1)
    view = [[viewmats_C44[:, i, j, None] for j in range(4)] for i in range(3)]
    px, py, pz = (_dot(row, mu) + row[3] for row in view)
    # Rows of W3 M, whose products are S_c.
    axes = [[_dot(row, [part[k] for part in turn]) * s[k] for k in range(3)] for row in view]
    fx, fy, cx, cy = (Ks_C33[:, i, j, None] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    is_deep = (pz >= near_plane) & (pz <= far_plane)
    depth = torch.where(is_deep, pz, 1)
    inverse = 1 / depth
    u, v = fx * px * inverse + cx, fy * py * inverse + cy
    margin_x, margin_y = _MARGIN * 0.5 * width / fx, _MARGIN * 0.5 * height / fy
    tx = torch.clamp(px * inverse, -(cx / fx + margin_x), (width - cx) / fx + margin_x)
    ty = torch.clamp(py * inverse, -(cy / fy + margin_y), (height - cy) / fy + margin_y)
    # Rows of J W3 M.
    rows = [
        [f * inverse * (axes[i][k] - t * axes[2][k]) for k in range(3)]
        for i, (f, t) in enumerate(((fx, tx), (fy, ty)))
    ]
    xx, xy, yy = (_dot(rows[a], rows[b]) for a, b in ((0, 0), (0, 1), (1, 1)))
    xx, yy = xx + eps2d, yy + eps2d
    det = xx * yy - xy * xy
    is_seen = is_deep & (det > 0)
    share = torch.where(is_seen, 1 / torch.where(is_seen, det, 1), 0)
    sigmas, is_drawn = torch.full_like(pz, MOST_SIGMAS), is_seen
    if opacities_N is not None:
        sigmas = torch.sqrt(2 * torch.log((opacities_N / LEAST_ALPHA).clamp_min(1))).clamp_max(MOST_SIGMAS)
        is_drawn = is_drawn & (opacities_N >= LEAST_ALPHA)
    rx, ry = _whole(sigmas * torch.sqrt(xx)), _whole(sigmas * torch.sqrt(yy))
    is_drawn = is_drawn & ((rx > radius_clip) | (ry > radius_clip))
    is_drawn = is_drawn & (u + rx > 0) & (u - rx < width) & (v + ry > 0) & (v - ry < height)
    return (
        torch.where(is_drawn[..., None], torch.stack((rx, ry), -1), 0),
        torch.where(is_seen[..., None], torch.stack((u, v), -1), 0),
        torch.where(is_seen, pz, 0),
        torch.stack((yy * share, -xy * share, xx * share), -1),
    )


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _whole(radius: Tensor) -> Tensor:
    found = radius.ceil()
    if _undecided:
        nearest = radius.round()
        is_near = (radius - nearest).abs() <= _undecided * radius
        found = torch.where(is_near, 2 * nearest + 1 - found, found)
    return found


@contextmanager
def other_way(roundings: float) -> Iterator[None]:
    """In the body a radius that roundings, of this size in all, could move over a whole number is the other
    one beside it."""
    global _undecided
    _undecided, before = roundings, _undecided
    try:
        yield
    finally:
        _undecided = before


def _fake(means_N3: Tensor, quats_N4: Tensor, scales_N3: Tensor, viewmats_C44: Tensor, *_: object) -> Parts:
    of_each = (len(viewmats_C44), len(means_N3))
    new = means_N3.new_empty
    return new(*of_each, 2), new(*of_each, 2), new(of_each), new(*of_each, 3)


_project_gaussians = Kernel(
    "project_gaussians",
    "(Tensor means, Tensor quats, Tensor scales, Tensor viewmats, Tensor Ks, Tensor? opacities, int width, "
    "int height, float eps2d, float near_plane, float far_plane, float radius_clip)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _project,
    fake=_fake,
    implementations=(Implementation("inductor", compiled(_project)),),
    rows=lambda means_N3, *_: len(means_N3),
    other_way=other_way,
)


def project_gaussians(
    means_N3: Tensor,
    quats_N4: Tensor,
    scales_N3: Tensor,
    viewmats_C44: Tensor,
    Ks_C33: Tensor,
    opacities_N: Tensor | None,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    *,
    impl: str | None = None,
) -> Parts:
    """(radii [C, N, 2], means2d [C, N, 2], depths [C, N], conics [C, N, 3]), all in the dtype of means, which
    all arguments have: float32 or float64. Quaternions (w, x, y, z) of any length, scales and opacities as
    they are used (k is 3.33 without opacities), viewmats from the world to a camera that looks along z, Ks
    without skew.

    Radii are whole numbers in pixels. Raises KernelError when `impl` cannot serve the call.
    """
    return _project_gaussians(
        means_N3, quats_N4, scales_N3, viewmats_C44, Ks_C33, opacities_N, width, height, eps2d, near_plane,
        far_plane, radius_clip, impl=impl,
    )  # fmt: skip
