"""Causal attention of the last tokens of a sequence over a window, and its gradient.

    P[i, j] = softmax_j(q[i] . k[j] / sqrt(K))            p - W < j <= p,  p = S - T + i
    o[i] = sum_j P[i, j] v[j]
    grad: dq, dk, dv of the T queries and of the last T keys and values; the others are constants

T tokens, the last of S whose keys and values are given, W keys of a window (the query's own included), H
heads, K head size. Softmax and sums in at least float32; results have the dtype of the query. The gradient
needs no more than the inputs: it computes P again.
Mirrors flash_attn.flash_attn_func with causal and window_size=(W - 1, 0), and its backward.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SlidingAttention(nn.Module):
    def __init__(self, head_size: int, sliding_window: int) -> None:
        super().__init__()
        self.scale, self.window = head_size**-0.5, sliding_window

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, H, K], k and v [S, H, K] -> [T, H, K]"""
        return kernels.sliding_attention(q, k, v, self.scale, self.window)


class SlidingAttentionGrad(nn.Module):
    def __init__(self, head_size: int, sliding_window: int) -> None:
        super().__init__()
        self.scale, self.window = head_size**-0.5, sliding_window

    def forward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dout and q [T, H, K], k and v [S, H, K] -> (dq, dk, dv), [T, H, K] each"""
        return kernels.sliding_attention_grad(dout, q, k, v, self.scale, self.window)
