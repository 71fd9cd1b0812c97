"""Colours that depend on the direction: real spherical harmonics.

    y[.., n, c] = sum_k basis_k(d / |d|) coeffs[n, k, c]           k < (degrees_to_use + 1)^2

N Gaussians, K coefficients of each colour c, basis_0 = 0.2821, basis_1..3 = 0.4886 (-y, z, -x), and so on to
degree 3. Where masks is False the colour is zero. Computed in at least float32; y has the dtype of dirs.
Mirrors gsplat.spherical_harmonics; coefficients may also be the same for all cameras, [N, K, 3].
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SphericalHarmonics(nn.Module):
    def forward(
        self, degrees_to_use: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None = None
    ) -> Tensor:
        """dirs [.., N, 3] of any length, coeffs [N, K, 3] or [.., N, K, 3], masks bool [.., N]
        -> [.., N, 3]"""
        return kernels.spherical_harmonics(dirs, coeffs, masks, degrees_to_use)
