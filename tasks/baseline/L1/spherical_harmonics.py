"""What depends on the direction: real spherical harmonics, and colours from their coefficients.

    y[.., n, c] = sum_k basis_k(d / |d|) coeffs[n, k, c]           k < (degrees_to_use + 1)^2
    encoding: y[m, k] = basis_k(d[m])                              k < degree^2

N Gaussians, K coefficients of each colour c, basis_0 = 0.2821, basis_1..3 = 0.4886 (-y, z, -x), and so on to
degree 3. Where masks is False the colour is zero. The encoding takes M directions of length one as they are;
tiny-cuda-nn is given (d + 1) / 2, and undoes it. Computed in at least float32; y has the dtype of dirs.
Mirrors gsplat.spherical_harmonics, whose coefficients may also be the same for all cameras, [N, K, 3], and
tinycudann.Encoding with otype SphericalHarmonics.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.config import ConfigReader


class SphericalHarmonics(nn.Module):
    def forward(
        self, degrees_to_use: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None = None
    ) -> Tensor:
        """dirs [.., N, 3] of any length, coeffs [N, K, 3] or [.., N, K, 3], masks bool [.., N]
        -> [.., N, 3]"""
        return kernels.spherical_harmonics(dirs, coeffs, masks, degrees_to_use)


class SphericalHarmonicsEncoding(nn.Module):
    def __init__(self, n_input_dims: int, encoding_config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(encoding_config)
        reader.choice("otype", {"SphericalHarmonics": None})
        self.degree = reader.integer("degree")
        if n_input_dims != 3:
            raise ValueError(f"n_input_dims must be 3, not {n_input_dims}")
        if self.degree > 4:
            raise reader.error("degree", f"must be 1 to 4, not {self.degree}")
        self.n_output_dims = self.degree**2

    def forward(self, x: Tensor) -> Tensor:
        """[M, 3] -> [M, degree^2]"""
        return kernels.sh_encoding(x, self.degree - 1)
