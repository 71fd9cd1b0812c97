"""Feature maps at other resolutions.

    ResizeGrid        y[t] = sum_mn u_m v_n table[m, n]
                      u_m ~ max(0, 1 - |m + 1/2 - c| / max(s, 1)), sum_m u_m = 1
    UpsampleConcat    y[b, r, c] = concat(x[b, r // 2, c // 2], skip[b, r, c])
    Upsample          y[b, r, c] = x[b, r // 2, c // 2]
    SampleGrid        y[t] = bilinear(table, (p[t, 0] (M - 1), p[t, 1] (N - 1)))

ResizeGrid: a grid of features resampled to the grids of packed images, bilinear with antialiasing. For the
token t at row r of an image of h rows: s = M / h, c = s (r + 1/2); v_n likewise along its columns. M, N
rows and columns of the table, B images, T tokens in all, D features; image b has spatial_shapes[b] rows and
columns and lies row by row behind image b - 1. Weights and sums in at least float32; y has the dtype of the
table. UpsampleConcat: a map at twice its rows and columns, nearest, with another's channels behind; exact.
Upsample: the same without another. SampleGrid: a grid of features at places p from 0, an axis' first point,
to 1, its last (corners aligned); rounded once from at least float32.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2VisionEmbeddings.resize_positional_embeddings,
which calls torch.nn.functional.interpolate(mode="bilinear", antialias=True, align_corners=False) for each
image, on patches without padding; torch.nn.Upsample(scale_factor=2) with torch.cat;
torch.nn.functional.grid_sample(mode="bilinear", align_corners=True), there with places from -1 to 1.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class ResizeGrid(nn.Module):
    def forward(self, positional_embeddings: Tensor, spatial_shapes: Tensor, num_tokens: int) -> Tensor:
        """positional_embeddings, the table [M, N, D], spatial_shapes int64 [B, 2] -> [num_tokens, D]"""
        return kernels.resize_grid(positional_embeddings, spatial_shapes, num_tokens)


class UpsampleConcat(nn.Module):
    def forward(self, input: Tensor, skip: Tensor) -> Tensor:
        """input [B, Y, X, C], skip [B, 2 Y, 2 X, D] -> [B, 2 Y, 2 X, C + D]"""
        return kernels.upsample_concat(input, skip)


class Upsample(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, 2 Y, 2 X, C]"""
        return kernels.upsample(input)


class SampleGrid(nn.Module):
    def forward(self, grid: Tensor, input: Tensor) -> Tensor:
        """grid, the places [T, 2] (row, column), input, the table [M, N, D] -> [T, D]"""
        return kernels.sample_grid(grid, input)
