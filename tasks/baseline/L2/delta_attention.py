"""Gated DeltaNet block of a decoder, from hidden states to hidden states; its cache is two states for each
request.

    [q | k | v | z | b | a] = x Win^T;   [q | k | v] = silu(causal_conv([q | k | v]))
    o = delta_rule(q, k, v; decay by a, beta by b)
    out = (rms_norm(o) * silu(z)) Wout^T                        over each head, one weight for all

T tokens, D hidden, J heads of keys, H heads of values, K key dim, V value dim, C channels of the convolution,
2 J K + H V; scale 1/sqrt(K). H / J consecutive heads of values share a head of keys. The convolution has no
bias; z, b and a go past it. The delta rule takes q and k as directions. The ambient step says which rows the
tokens belong to and where their states lie: its first `num_decodes` rows have one token each and take the
recurrent kernels, the others those of chunks. States and A_log are float32 at least; the rest is rounded to
the dtype of x after each line. Rows of Win lie by parts, those of a checkpoint by heads of keys.
Mirrors transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.cache import CacheOwner, State
from fastkernels.nn.context import by_phase

from ..L1.causal_conv1d import CausalConv1d, CausalConv1dUpdate
from ..L1.delta_rule import ChunkGatedDeltaRule, RecurrentGatedDeltaRule
from ..L1.gated_rms_norm import RMSNormGated
from .parallel_linear import ColumnParallelLinear, RowParallelLinear


class GatedDeltaNet(CacheOwner):
    conv_state: Tensor
    state: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_k_heads: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        conv_kernel_size: int = 4,
        layer_norm_epsilon: float = 1e-6,
    ) -> None:
        super().__init__()
        self.k_heads, self.v_heads = (num_k_heads, head_k_dim), (num_v_heads, head_v_dim)
        keys, values = num_k_heads * head_k_dim, num_v_heads * head_v_dim
        self.conv_sizes = [keys, keys, values]
        channels = sum(self.conv_sizes)
        self.sizes = [channels, values, num_v_heads, num_v_heads]
        self.cache = State(
            (
                ("conv_state", (conv_kernel_size - 1, channels)),
                ("state", (num_v_heads, head_k_dim, head_v_dim)),
            )
        )
        self.in_proj = ColumnParallelLinear(hidden_size, sum(self.sizes))
        self.conv_weight = _parameter(channels, 1, conv_kernel_size)
        self.conv, self.conv_update = CausalConv1d(), CausalConv1dUpdate()
        self.A_log = _parameter(num_v_heads, dtype=self.cache.dtype(torch.get_default_dtype()))
        self.dt_bias = _parameter(num_v_heads)
        scale = head_k_dim**-0.5
        self.chunk, self.recurrent = ChunkGatedDeltaRule(scale), RecurrentGatedDeltaRule(scale)
        self.norm = RMSNormGated(head_v_dim, layer_norm_epsilon)
        self.out_proj = RowParallelLinear(values, hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]. Advances the states of the step's rows."""
        mixed_TC, z_TI, b_TH, a_TH = self.in_proj(hidden_states).split(self.sizes, dim=-1)
        conv = (self.conv_weight.squeeze(1), None, self.conv_state)
        mixed_TC = by_phase(self.conv_update, self.conv, (mixed_TC,), conv)
        q, k, v = mixed_TC.split(self.conv_sizes, dim=-1)
        q_TJK, k_TJK = (x.unflatten(-1, self.k_heads) for x in (q, k))
        tokens = (q_TJK, k_TJK, v.unflatten(-1, self.v_heads), a_TH, b_TH)
        o_THV = by_phase(self.recurrent, self.chunk, tokens, (self.A_log, self.dt_bias, self.state))
        return self.out_proj(self.norm(o_THV, z_TI.unflatten(-1, self.v_heads)).flatten(1))


def _parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
