"""Voxels of clouds in the orders of space-filling curves, and put together to voxels of twice the side.

    default    code[o, n] = batch[n] << 3 D | curve_o(grid[n]),  order = argsort(code),  its inverse
    coarsen    cluster[n] = place of code[0, n] >> 3 among the different ones, which rise
               head[m] = first voxel of cluster m in order 0,  code'[o, m] = code[o, head[m]] >> 3
               order', inverse' of code'

O curves (z, z-trans, hilbert, hilbert-trans), N voxels, M clusters, D bits of a coordinate. z interleaves
the bits of x, y and z, x first; hilbert turns and mirrors the eighths of each cube so that neighbours on the
curve are neighbours in space; -trans exchanges x and y. Voxels idx_ptr[m] .. idx_ptr[m + 1] - 1 of order 0
are those of cluster m. M is given, as the number there is, so that nothing is read on the host. All is int64
and exact.
Mirrors pointcept.models.utils.structure.Point.serialization, and what
pointcept.models.point_transformer_v3.SerializedPooling does with its codes.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class Serialization(nn.Module):
    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.order = order

    def forward(self, grid_coord: Tensor, batch: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        """grid_coord int [N, 3], different in each cloud, from 0 to below 2^D, batch int [N] -> code, order,
        inverse, int64 [O, N]"""
        return kernels.serialize(grid_coord, batch, depth, self.order)


class Coarsen(nn.Module):
    def forward(
        self, code: Tensor, order: Tensor, clusters: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """code and order int64 [O, N] -> code, order, inverse [O, M], cluster [N], idx_ptr [M + 1], head [M],
        int64"""
        return kernels.coarsen(code, order, clusters)
