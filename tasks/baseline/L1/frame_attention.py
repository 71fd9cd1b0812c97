"""Attention of each place of a clip's new frames to the same place of all its frames so far.

    o[n, t] = sum_j softmax_j(scale q[n, t] . k[n, j]) v[n, j]        0 <= j <= S - T + t,  each head alone

N places of all clips, T new frames, the last of the S frames, H heads, K head size. Softmax and sums in at
least float32; o has the dtype of the query.
Mirrors flash_attn.flash_attn_func with causal=True, whose last query sees every key.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class FrameAttention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, T, H, K], k and v [N, S, H, K], T <= S -> [N, T, H, K]"""
        return kernels.frame_attention(q, k, v, self.scale)
