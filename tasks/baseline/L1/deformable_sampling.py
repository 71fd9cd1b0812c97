"""Multi-scale deformable sampling: every query reads a few places of several maps, by weights of its own.

    y[b, q, h] = sum_p w[b, q, h, p] bilinear(map_l(p)[b, :, :, h], places[b, q, h, p])
    bilinear   between the four cells around (X_l places[.., 0] - 1/2, Y_l places[.., 1] - 1/2)

B images, Q queries, H heads, D features of a head; L maps of Y_l rows and X_l columns, their N cells one
behind the other, row by row; P places of a query, the first P / L of them in the first map, and so on. Places
are columns and rows from 0, the edge of a map, to 1; cells outside of a map are zero. Places, weights and
sums in at least float32; y has the dtype of the value.
Mirrors transformers.models.rt_detr_v2.modeling_rt_detr_v2.multi_scale_deformable_attention_v2, method
"default" (there torch.nn.functional.grid_sample of each map, in the dtype of the value).
"""

from __future__ import annotations

from itertools import chain

from torch import Tensor, nn

from fastkernels import kernels


class DeformableSampling(nn.Module):
    def forward(
        self,
        value: Tensor,
        value_spatial_shapes: list[list[int]],
        sampling_locations: Tensor,
        attention_weights: Tensor,
    ) -> Tensor:
        """value [B, N, H, D], value_spatial_shapes L of [Y, X], sampling_locations [B, Q, H, P, 2] (column,
        row), attention_weights [B, Q, H, P] -> [B, Q, H * D]"""
        sides = list(chain.from_iterable(value_spatial_shapes))
        return kernels.deformable_sampling(value, sides, sampling_locations, attention_weights).flatten(2)
