"""Depthwise causal convolution over time with silu; the inputs that the next token needs are a state.

    y[t] = silu(bias + sum_j weight[:, j] x[t - (K-1) + j])        j = 0 .. K-1,  silu(c) = c / (1 + exp(-c))

T tokens, B rows of the step, C channels, K taps, R rows of the pool. The state [R, K-1, C] holds the inputs
before a request's next token, oldest first, zeros before its first; it is float32 (at least) whatever the
inputs are, moved on in place at the step's rows, and no other row of it is touched. Row 0 is null: what is
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
        conv_states: Tensor,
        cache_indices: Tensor,
        query_start_loc: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """x [T, C] (rows may be strided), weight [C, K], bias [C], conv_states [R, K-1, C] (written),
        cache_indices int64 [B], query_start_loc int32 [B+1] from 0 to T -> [T, C]"""
        return kernels.causal_conv1d(
            x, weight, bias, conv_states, cache_indices, query_start_loc, max_query_len
        )


class CausalConv1dUpdate(nn.Module):
    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, conv_state: Tensor, conv_state_indices: Tensor
    ) -> Tensor:
        """x [B, C] (rows may be strided), weight [C, K], bias [C], conv_state [R, K-1, C] (written),
        conv_state_indices int64 [B] -> [B, C]"""
        return kernels.causal_conv1d_update(x, weight, bias, conv_state, conv_state_indices)
