"""Kimi Delta Attention block of a decoder, from hidden states to hidden states; its cache is two states for
each request.

    [q | k | v | f | z | b] = x Win^T;   [q | k | v] = silu(causal_conv([q | k | v]))
    o = delta_rule(q, k, v; decay by f Wf^T, beta by b)         a decay for each channel of the key
    out = (rms_norm(o) * sigmoid(z Wz^T)) Wout^T                over each head, one weight for all

T tokens, D hidden, H heads, K head dim, of keys and of values; f and z have rank K. scale 1/sqrt(K). The
convolution has no bias; f, z and b go past it. The delta rule takes q and k as directions. The ambient step
says which rows the tokens belong to and where their states lie: its first `num_decodes` rows have one token
each and take the recurrent kernels, the others those of chunks. States and A_log are float32 at least; the
rest is rounded to the dtype of x after each line and each product.
Mirrors vllm.model_executor.layers.kda.KimiDeltaAttention
(transformers.models.kimi_linear.modeling_kimi_linear.KimiLinearDeltaAttention).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.cache import CacheOwner, State
from fastkernels.nn.context import by_phase

from ..L1.causal_conv1d import CausalConv1d, CausalConv1dUpdate
from ..L1.delta_rule import ChunkKDA, RecurrentKDA
from ..L1.gated_rms_norm import RMSNormGated
from .parallel_linear import ColumnParallelLinear, RowParallelLinear


class KimiDeltaAttention(CacheOwner):
    conv_state: Tensor
    state: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        conv_size: int = 4,
        rms_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.heads, width = (num_heads, head_dim), num_heads * head_dim
        self.sizes = [3 * width, head_dim, head_dim, num_heads]
        self.cache = State(
            (
                ("conv_state", (conv_size - 1, 3 * width)),
                ("state", (num_heads, head_dim, head_dim)),
            )
        )
        self.in_proj = ColumnParallelLinear(hidden_size, sum(self.sizes))
        self.conv_weight = _parameter(3 * width, 1, conv_size)
        self.conv, self.conv_update = CausalConv1d(), CausalConv1dUpdate()
        self.f_b_proj, self.g_b_proj = (ColumnParallelLinear(head_dim, width) for _ in range(2))
        self.A_log = _parameter(num_heads, dtype=self.cache.dtype(torch.get_default_dtype()))
        self.dt_bias = _parameter(width)
        self.chunk, self.recurrent = ChunkKDA(head_dim**-0.5), RecurrentKDA(head_dim**-0.5)
        self.o_norm = RMSNormGated(head_dim, rms_norm_eps, "sigmoid")
        self.o_proj = RowParallelLinear(width, hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]. Advances the states of the step's rows."""
        mixed_TC, f_TK, z_TK, b_TH = self.in_proj(hidden_states).split(self.sizes, dim=-1)
        conv = (self.conv_weight.squeeze(1), None, self.conv_state)
        mixed_TC = by_phase(self.conv_update, self.conv, (mixed_TC,), conv)
        parts = (*mixed_TC.chunk(3, dim=-1), self.f_b_proj(f_TK), self.g_b_proj(z_TK))
        q_THK, k_THK, v_THK, g_THK, z_THK = (x.unflatten(-1, self.heads) for x in parts)
        tokens, others = (q_THK, k_THK, v_THK, g_THK, b_TH), (self.A_log, self.dt_bias, self.state)
        o_THK = by_phase(self.recurrent, self.chunk, tokens, others)
        return self.o_proj(self.o_norm(o_THK, z_THK).flatten(1))


def _parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
