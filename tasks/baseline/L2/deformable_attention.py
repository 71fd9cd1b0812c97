"""Deformable attention of a DETR: every query reads a few places around its box in several maps.

    offsets, logits = (x + p) Wo^T + bo, (x + p) Ww^T + bw
    places = centre + size (scale / n) offsets,  w = softmax_p(logits)
    y = sample(maps Wv^T + bv, places, w) Wy^T + by                       L1/deformable_sampling

B images, Q queries, D hidden, H heads; N cells of L maps, n points of a query in each, P = L n; centre
(column, row) and size of its box, from 0 to 1. Places in at least float32; rounded to the dtype of x after
each product, the softmax and the sample.
Mirrors transformers.models.rt_detr_v2.modeling_rt_detr_v2.RTDetrV2MultiscaleDeformableAttention, boxes of
four numbers and method "default".
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.deformable_sampling import DeformableSampling
from ..L1.linear import Linear
from ..L1.softmax import Softmax
from .parallel_linear import MergedColumnParallelLinear


class DeformableAttention(nn.Module):
    def __init__(
        self, d_model: int, n_heads: int, n_levels: int = 3, n_points: int = 4, offset_scale: float = 0.5
    ) -> None:
        super().__init__()
        self.n_heads, self.n_places = n_heads, n_levels * n_points
        self.n_points, self.offset_scale = n_points, offset_scale
        self.value_proj = Linear(d_model, d_model, bias=True)
        places = n_heads * self.n_places
        self.sampling_offsets_weights = MergedColumnParallelLinear(d_model, [2 * places, places], bias=True)
        self.softmax = Softmax()
        self.sample = DeformableSampling()
        self.output_proj = Linear(d_model, d_model, bias=True)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        position_embeddings: Tensor,
        reference_points: Tensor,
        spatial_shapes_list: list[list[int]],
    ) -> Tensor:
        """hidden_states and position_embeddings [B, Q, D], encoder_hidden_states [B, N, D], reference_points
        [B, Q, 4] (centre, size), float32 at least, spatial_shapes_list L of [Y, X] -> [B, Q, D]"""
        heads, places = self.n_heads, self.n_places
        value_BNHK = self.value_proj(encoder_hidden_states).unflatten(-1, (heads, -1))
        both = self.sampling_offsets_weights(hidden_states + position_embeddings)
        offsets, logits = both.split([2 * heads * places, heads * places], dim=-1)
        weights_BQHP = self.softmax(logits.unflatten(-1, (heads, places)))
        centre_BQ112, size_BQ112 = reference_points[:, :, None, None].split(2, dim=-1)
        reach_BQ112 = size_BQ112 * (self.offset_scale / self.n_points)
        places_BQHP2 = centre_BQ112 + offsets.unflatten(-1, (heads, places, 2)) * reach_BQ112
        return self.output_proj(self.sample(value_BNHK, spatial_shapes_list, places_BQHP2, weights_BQHP))
