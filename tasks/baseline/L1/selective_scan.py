"""The selective scan of Mamba: a vector for each channel and request, decayed and added to by every token.

    step[t] = softplus(delta[t] + delta_bias)        A = -exp(A_log)        silu(z) = z / (1 + exp(-z))
    h[t] = exp(step[t] A) h[t-1] + step[t] u[t] B[t]^T        y[t] = (h[t] C[t] + D u[t]) silu(z[t])

T tokens, B rows of the step, I channels, N values of a channel's state, R rows of the pool; h is I x N, B
and C are shared by all channels. The state [R, I, N] holds h of every request, the step's at its rows; it is
float32 (at least) whatever the inputs are, advanced in place, and no other row of it is touched. Row 0 is
null: what is written there is never read. A_log is float32 (at least) too. Everything is computed in at
least float32 and y rounded once to the dtype of u. The first class takes the tokens of prefill rows, the
second one token of each decode row, without synchronisation with the host; both leave the same states. x, dt
and dt_bias of the second are u, delta and delta_bias of the first.
Mirrors vllm.model_executor.layers.mamba.ops.mamba_ssm: selective_scan_fn and selective_state_update with
softplus and gate, tokens first, and A by its logarithm, as checkpoints have it.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SelectiveScan(nn.Module):
    def forward(
        self,
        u: Tensor,
        delta: Tensor,
        B: Tensor,
        C: Tensor,
        z: Tensor,
        A_log: Tensor,
        D: Tensor,
        delta_bias: Tensor,
        ssm_states: Tensor,
        cache_indices: Tensor,
        query_start_loc: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """u, delta, z [T, I] and B, C [T, N] (rows may be strided), A_log [I, N], D and delta_bias [I],
        ssm_states [R, I, N] (written), cache_indices int64 [B], query_start_loc int32 [B+1] from 0 to T ->
        [T, I]"""
        tokens, parameters = (u, delta, B, C, z), (A_log, D, delta_bias)
        return kernels.selective_scan(
            *tokens, *parameters, ssm_states, cache_indices, query_start_loc, max_query_len
        )


class SelectiveStateUpdate(nn.Module):
    def forward(
        self,
        x: Tensor,
        dt: Tensor,
        B: Tensor,
        C: Tensor,
        z: Tensor,
        A_log: Tensor,
        D: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        state_batch_indices: Tensor,
    ) -> Tensor:
        """x, dt, z [B, I] and B, C [B, N] (rows may be strided), A_log [I, N], D and dt_bias [I],
        state [R, I, N] (written), state_batch_indices int64 [B] -> [B, I]"""
        return kernels.selective_state_update(x, dt, B, C, z, A_log, D, dt_bias, state, state_batch_indices)
