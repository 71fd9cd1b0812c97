"""Attention of each place of a clip's new frames to the same place of the frames so far: project,
rotate, store, attend.

    [q | k | v] = x Wqkv^T
    key_cache[n, S - T + t], value_cache[n, S - T + t] = rope(k)[n, t], v[n, t]
    y = attention(rope(q), key_cache, value_cache) Wo^T + bo        over frames up to the query's own

B clips, T new frames of L tokens, the last of S frames, n one of N = B L places, D hidden, H heads, K = D / H
head size; scale 1/sqrt(K). The other frames' keys and values are those of earlier calls. Rounded to the dtype
of x after each product, rotation and attention.
Mirrors attention.TemporalAxialAttention of open-oasis, which recomputes what the caches hold.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.diffusion_rope import ApplyRotaryEmbedding
from ..L1.frame_attention import FrameAttention
from .parallel_linear import QKVParallelLinear, RowParallelLinear


class TemporalAxialAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_size = heads, dim // heads
        self.qkv_proj = QKVParallelLinear(dim, self.head_size, heads, heads, bias=False)
        self.rope = ApplyRotaryEmbedding()
        self.attn = FrameAttention(self.head_size**-0.5)
        self.to_out = RowParallelLinear(dim, dim, bias=True)

    def forward(self, x: Tensor, rotary_emb: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        """x [B, T, L, D], rotary_emb [T, K], caches [B L, S, H, K], of whose frames the last T are written
        -> [B, T, L, D]"""
        (clips, new), heads = x.shape[:2], (3, self.num_heads, self.head_size)
        qkv_BTL3HK = self.qkv_proj(x.flatten(0, 1)).unflatten(-1, heads).unflatten(0, (clips, new))
        q, k, v = qkv_BTL3HK.transpose(1, 2).flatten(0, 1).unbind(2)
        q, k = self.rope(q, k, rotary_emb)
        key_cache[:, -new:].copy_(k)
        value_cache[:, -new:].copy_(v)
        o_NTHK = self.attn(q, key_cache, value_cache)
        o_BTLD = o_NTHK.flatten(2).unflatten(0, (clips, -1)).transpose(1, 2)
        return self.to_out(o_BTLD.flatten(0, 1)).unflatten(0, (clips, new))
