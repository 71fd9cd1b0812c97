"""Depthwise causal convolution over time with silu; the inputs that the next token needs are a state.

    y[t] = silu(bias + sum_j weight[:, j] x[t - (K-1) + j])        j = 0 .. K-1,  silu(c) = c / (1 + exp(-c))

T tokens, B rows of the step, C channels, K taps, R rows of the pool. `state` [R, K-1, C] holds the inputs
before a request's next token, oldest first, zeros before its first; it is float32 (at least) whatever the
inputs are, moved on in place at the step's `rows`, and no other row of it is touched. Row 0 is null: what is
written there is never read. Sums accumulate in at least float32; y has the dtype of x. The first class takes
the tokens of prefill rows, the second one token of each decode row, without synchronisation with the host;
both leave the same states.
Mirrors vllm.model_executor.layers.mamba.ops.causal_conv1d: causal_conv1d_fn and causal_conv1d_update with
activation silu, tokens first.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class CausalConv1d(nn.Module):
    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        rows: Tensor,
        query_starts: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """x [T, C] (rows may be strided), weight [C, K], bias [C], state [R, K-1, C] (written), rows int64
        [B], query_starts int32 [B+1] from 0 to T -> [T, C]"""
        return kernels.causal_conv1d(x, weight, bias, state, rows, query_starts, max_query_len)


class CausalConv1dUpdate(nn.Module):
    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: Tensor) -> Tensor:
        """x [B, C] (rows may be strided), weight [C, K], bias [C], state [R, K-1, C] (written), rows int64
        [B] -> [B, C]"""
        return kernels.causal_conv1d_update(x, weight, bias, state, rows)
