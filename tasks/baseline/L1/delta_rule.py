"""The gated delta rule: a matrix for each head and request, in which every token replaces what its key reads.

    S[t] = D S[t-1] + k[t] (beta[t] (v[t] - (D S[t-1])^T k[t]))^T          o[t] = scale S[t]^T q[t]
    D = diag(exp(-exp(A_log) softplus(g[t] + dt_bias)))                    beta[t] = sigmoid(beta[t])
    q, k = q / sqrt(|q|^2 + 1e-6), k / sqrt(|k|^2 + 1e-6)

T tokens, B rows of the step, J heads of keys, H heads of values, K key dim, V value dim, R rows of the pool;
S is K x V. H / J consecutive heads of values share a head of keys and queries. The first two classes have one
gate for a head, the others (KDA) one for each channel of its key. `state` [R, H, K, V] holds S of every
request, the step's at `rows`; it is float32 (at least) whatever the inputs are, advanced in place, and no
other row of it is touched. Row 0 is null: what is written there is never read. Gates, directions and sums are
in at least float32; o has the dtype of the query. The chunked classes take the tokens of prefill rows, the
recurrent ones one token of each decode row, without synchronisation with the host; they leave the same
states.
Mirrors fla.ops.gated_delta_rule.chunk_gated_delta_rule and fused_recurrent_gated_delta_rule, and
fla.ops.kda.chunk_kda and fused_recurrent_kda (use_qk_l2norm_in_kernel, use_gate_in_kernel,
use_beta_sigmoid_in_kernel), with states in place.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class ChunkGatedDeltaRule(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        A_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        rows: Tensor,
        cu_seqlens: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """q, k [T, J, K], v [T, H, V], g and beta [T, H] (rows may be strided), A_log float32 [H],
        dt_bias [H], state [R, H, K, V] (written), rows int64 [B], cu_seqlens int32 [B+1] from 0 to T
        -> [T, H, V]"""
        tokens, gates = (q, k, v, g, beta), (A_log, dt_bias)
        return kernels.chunk_delta_rule(*tokens, *gates, self.scale, state, rows, cu_seqlens, max_query_len)


class RecurrentGatedDeltaRule(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        A_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """q, k [B, J, K], v [B, H, V], g and beta [B, H] (rows may be strided), A_log float32 [H],
        dt_bias [H], state [R, H, K, V] (written), rows int64 [B] -> [B, H, V]"""
        tokens, gates = (q, k, v, g, beta), (A_log, dt_bias)
        return kernels.recurrent_delta_rule(*tokens, *gates, self.scale, state, rows)


class ChunkKDA(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        A_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        rows: Tensor,
        cu_seqlens: Tensor,
        max_query_len: int,
    ) -> Tensor:
        """As of ChunkGatedDeltaRule, with g [T, H, K] and dt_bias [H K]."""
        tokens, gates = (q, k, v, g, beta), (A_log, dt_bias.view(g.shape[1:]))
        return kernels.chunk_delta_rule(*tokens, *gates, self.scale, state, rows, cu_seqlens, max_query_len)


class RecurrentKDA(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        A_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """As of RecurrentGatedDeltaRule, with g [B, H, K] and dt_bias [H K]."""
        tokens, gates = (q, k, v, g, beta), (A_log, dt_bias.view(g.shape[1:]))
        return kernels.recurrent_delta_rule(*tokens, *gates, self.scale, state, rows)
