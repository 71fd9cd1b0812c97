"""Gated linear attention block of a decoder, from hidden states to hidden states; the state is its cache.

    [q | k | v | g | low] = x Win^T
    gate = log_sigmoid(low Wgate^T + b) / divisor
    o[t] = scale S[t]^T q[t],   S[t] = diag(exp(gate[t])) S[t-1] + k[t] v[t]^T
    y = (rms_norm(o) * silu(g)) Wo^T                            over each head, one weight for all

    retention   [q | k | v | g] = x Win^T;  q, k = rope(positions, q, k);  gate = log(1 - 2^(-5-h)) in head h

T tokens, D hidden, H heads, K key dim, V value dim; scale 1/sqrt(K). Positions count from each request's
first token. The ambient step says which rows the
tokens belong to and where their states lie: its first `num_decodes` rows have one token each and take the
recurrent kernel, the others the chunked one. States are float32 at least; the rest is rounded to the dtype of
x after each line.
Mirrors fla.layers.gla.GatedLinearAttention (use_gk, use_output_gate, without short convolution) and
fla.layers.multiscale_retention.MultiScaleRetention (use_output_gate, num_kv_heads of all).
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.nn.cache import CacheOwner, State
from fastkernels.nn.context import by_phase

from ..L1.activation import LogSigmoid
from ..L1.gated_rms_norm import RMSNormGated
from ..L1.gla import ChunkGLA, ChunkRetention, RecurrentGLA, RecurrentRetention
from ..L1.rope import RotaryEmbedding
from .parallel_linear import ColumnParallelLinear, RowParallelLinear

# Of retention, which its configuration does not say.
ROPE_PARAMETERS = {"rope_type": "default", "rope_theta": 10000.0}


class GatedLinearAttention(CacheOwner):
    state: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        gate_low_rank_dim: int = 16,
        gate_logit_normalizer: float = 16.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, value_dim
        keys, values = num_heads * key_dim, num_heads * value_dim
        self.sizes = [keys, keys, values, values, gate_low_rank_dim]
        self.cache = State((("state", (num_heads, key_dim, value_dim)),))
        self.in_proj = ColumnParallelLinear(hidden_size, sum(self.sizes))
        self.gate_proj = ColumnParallelLinear(gate_low_rank_dim, keys, bias=True)
        self.log_sigmoid = LogSigmoid(gate_logit_normalizer)
        self.chunk, self.recurrent = ChunkGLA(key_dim**-0.5), RecurrentGLA(key_dim**-0.5)
        self.norm = RMSNormGated(value_dim, norm_eps)
        self.o_proj = RowParallelLinear(values, hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]. Advances the states of the step's rows."""
        q, k, v, g, low = self.in_proj(hidden_states).split(self.sizes, dim=-1)
        gate = self.log_sigmoid(self.gate_proj(low))
        q_THK, k_THK, gate_THK = (x.unflatten(-1, (self.num_heads, self.key_dim)) for x in (q, k, gate))
        v_THV, g_THV = (x.unflatten(-1, (self.num_heads, self.value_dim)) for x in (v, g))
        tokens = (q_THK, k_THK, v_THV, gate_THK)
        o_THV = by_phase(self.recurrent, self.chunk, tokens, (self.state,))
        return self.o_proj(self.norm(o_THV, g_THV).flatten(1))


class MultiScaleRetention(CacheOwner):
    state: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        max_position: int,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, value_dim
        keys, values = num_heads * key_dim, num_heads * value_dim
        self.sizes = [keys, keys, values, values]
        self.cache = State((("state", (num_heads, key_dim, value_dim)),))
        self.in_proj = ColumnParallelLinear(hidden_size, sum(self.sizes))
        self.rotary = RotaryEmbedding(key_dim, max_position, ROPE_PARAMETERS)
        self.chunk, self.recurrent = ChunkRetention(key_dim**-0.5), RecurrentRetention(key_dim**-0.5)
        self.norm = RMSNormGated(value_dim, norm_eps)
        self.o_proj = RowParallelLinear(values, hidden_size)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """positions [T], hidden_states [T, D] -> [T, D]. Advances the states of the step's rows."""
        q, k, v, g = self.in_proj(hidden_states).split(self.sizes, dim=-1)
        q, k = self.rotary(positions, q, k)
        q_THK, k_THK = (x.unflatten(-1, (self.num_heads, self.key_dim)) for x in (q, k))
        v_THV, g_THV = (x.unflatten(-1, (self.num_heads, self.value_dim)) for x in (v, g))
        o_THV = by_phase(self.recurrent, self.chunk, (q_THK, k_THK, v_THV), (self.state,))
        return self.o_proj(self.norm(o_THV, g_THV).flatten(1))
