"""The scan of Mamba 2 (SSD): a matrix for each head and request, decayed and added to by every token.

    step[t] = softplus(dt[t] + dt_bias)        A = -exp(A_log)                one number for each head
    S[t] = exp(step[t] A) S[t-1] + step[t] x[t] B[t]^T        y[t] = S[t] C[t] + D x[t]

T tokens, B rows of the step, H heads of P channels, G groups, N values of a channel's state, R rows of the
pool; S is P x N, B and C are shared by the H / G consecutive heads of a group. The state [R, H, P, N] holds S
of every request, the step's at its rows; it is float32 (at least) whatever the inputs are, advanced in place,
and no other row of it is touched. Row 0 is null: what is written there is never read. A_log is float32 (at
least) too. Sums are in at least float32 and y is rounded once to the dtype of x; for 16-bit inputs the first
class may round what it multiplies to their dtype. The first class takes the tokens of prefill rows, the
second one token of each decode row, without synchronisation with the host; both leave the same states.
Mirrors vllm.model_executor.layers.mamba.ops.ssd_combined.mamba_chunk_scan_combined_varlen and
vllm.model_executor.layers.mamba.ops.mamba_ssm.selective_state_update with softplus and without gate, and A by
its logarithm, as checkpoints have it.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SSDScan(nn.Module):
    def forward(
        self,
        x: Tensor,
        dt: Tensor,
        B: Tensor,
        C: Tensor,
        A_log: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        ssm_states: Tensor,
        cache_indices: Tensor,
        cu_seqlens: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """x [T, H, P], dt [T, H], B and C [T, G, N] (strided but for their last dimension), A_log, D and
        dt_bias [H], ssm_states [R, H, P, N] (written), cache_indices int64 [B], cu_seqlens int32 [B+1] from 0
        to T -> [T, H, P]"""
        parameters = (A_log, D, dt_bias)
        return kernels.ssd_scan(
            x, dt, B, C, *parameters, ssm_states, cache_indices, cu_seqlens, max_query_len
        )


class SSDStateUpdate(nn.Module):
    def forward(
        self,
        x: Tensor,
        dt: Tensor,
        B: Tensor,
        C: Tensor,
        A_log: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        state_batch_indices: Tensor,
    ) -> Tensor:
        """x [B, H, P], dt [B, H], B and C [B, G, N] (strided but for their last dimension), A_log, D and
        dt_bias [H], state [R, H, P, N] (written), state_batch_indices int64 [B] -> [B, H, P]"""
        return kernels.ssd_state_update(x, dt, B, C, A_log, D, dt_bias, state, state_batch_indices)
