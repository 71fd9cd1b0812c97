"""Colours that depend on the direction: real spherical harmonics of degree 0 to 3.

    y[.., n, c] = sum_k basis_k(d / |d|) coeffs[n, k, c]                  k < (degree + 1)^2

N Gaussians · K coefficients of each colour, at least (degree + 1)^2 · c red, green, blue. The basis has the
signs of Inria's renderer and gsplat: degree 1 is (-y, z, -x). A direction of length zero stays zero. Computed
in float32 (float64 stays float64).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

MOST_DEGREE = 3
LEAST_NORM = 1e-12  # of a direction that is divided by


def basis(x: Tensor, y: Tensor, z: Tensor, degree: int) -> list[Tensor]:
    """(degree + 1)^2 functions of unit directions, each shaped as x."""
    found = [torch.full_like(x, 0.28209479177387814)]
    if degree > 0:
        found += [-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x]
    if degree > 1:
        xx, yy, zz = x * x, y * y, z * z
        found += [
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            0.9461746957575601 * zz - 0.31539156525252005,
            -1.0925484305920792 * x * z,
            0.5462742152960396 * (xx - yy),
        ]
        if degree > 2:
            found += [
                -0.5900435899266435 * y * (3 * xx - yy),
                2.890611442640554 * x * y * z,
                -0.4570457994644658 * y * (5 * zz - 1),
                0.3731763325901154 * z * (5 * zz - 3),
                -0.4570457994644658 * x * (5 * zz - 1),
                1.445305721320277 * z * (xx - yy),
                -0.5900435899266435 * x * (xx - 3 * yy),
            ]
    return found


def _reference(dirs: Tensor, coeffs: Tensor, masks: Tensor | None, degree: int) -> Tensor:
    wide = torch.promote_types(dirs.dtype, torch.float32)
    x, y, z = dirs.to(wide).unbind(-1)
    norm = (x * x + y * y + z * z).sqrt().clamp_min(LEAST_NORM)
    functions = basis(x / norm, y / norm, z / norm, degree)
    found = sum(one[..., None] * coeffs[..., k, :].to(wide) for k, one in enumerate(functions))
    assert isinstance(found, Tensor)
    if masks is not None:
        found = torch.where(masks[..., None], found, 0)
    return found.to(dirs.dtype)


_spherical_harmonics = Kernel(
    "spherical_harmonics",
    "(Tensor dirs, Tensor coeffs, Tensor? masks, int degree) -> Tensor",
    _reference,
    fake=lambda dirs, coeffs, masks, degree: dirs.new_empty(dirs.shape),
    implementations=(Implementation("inductor", compiled(_reference)),),
    rows=lambda dirs, *_: dirs.numel() // 3,
)


def spherical_harmonics(
    dirs: Tensor, coeffs: Tensor, masks: Tensor | None, degree: int, *, impl: str | None = None
) -> Tensor:
    """[.., N, 3]; dirs [.., N, 3] of any length, coeffs [N, K, 3] or [.., N, K, 3], masks bool [.., N]: where
    False the colour is zero and its coefficients need not be read.

    Raises ValueError for another degree than 0 to 3 and for too few coefficients, KernelError when `impl`
    cannot serve the call.
    """
    if not 0 <= degree <= MOST_DEGREE:
        raise ValueError(f"spherical_harmonics: degree {degree}, served are 0 to {MOST_DEGREE}")
    if coeffs.shape[-2] < (degree + 1) ** 2:
        needed = f"degree {degree} has {(degree + 1) ** 2} coefficients"
        raise ValueError(f"spherical_harmonics: {needed}, not {coeffs.shape[-2]}")
    return _spherical_harmonics(dirs, coeffs, masks, degree, impl=impl)


def _encoding(dirs_M3: Tensor, degree: int) -> Tensor:
    wide = torch.promote_types(dirs_M3.dtype, torch.float32)
    x, y, z = dirs_M3.to(wide).unbind(-1)
    return torch.stack(basis(x, y, z, degree), -1).to(dirs_M3.dtype)


_sh_encoding = Kernel(
    "sh_encoding",
    "(Tensor dirs, int degree) -> Tensor",
    _encoding,
    fake=lambda dirs_M3, degree: dirs_M3.new_empty(len(dirs_M3), (degree + 1) ** 2),
    implementations=(Implementation("inductor", compiled(_encoding)),),
    rows=lambda dirs_M3, _: len(dirs_M3),
)


def sh_encoding(dirs_M3: Tensor, degree: int, *, impl: str | None = None) -> Tensor:
    """[M, (degree + 1)^2]: the basis at unit directions [M, 3], which are not normalised.

    Raises ValueError for another degree than 0 to 3, KernelError when `impl` cannot serve the call.
    """
    if not 0 <= degree <= MOST_DEGREE:
        raise ValueError(f"sh_encoding: degree {degree}, served are 0 to {MOST_DEGREE}")
    return _sh_encoding(dirs_M3, degree, impl=impl)
