"""The mixer of Mamba 2, from hidden states to hidden states; its cache is two states for each request.

    [z | xBC | dt] = h Win^T;   xBC = silu(causal_conv(xBC));   [x | B | C] = xBC
    y = ssd_scan(x, dt, B, C)
    out = grouped_rms_norm(y silu(z)) Wout^T

T tokens, D hidden, H heads of P channels (I = H P), G groups, N values of a channel's state, K taps. B and C
[G, N] go through the convolution too, and each is shared by the H / G consecutive heads of a group; the norm
is over the I / G channels of each group. The bias of the time step is added inside the scan. The ambient step
says which rows the tokens belong to and where their states lie: its first `num_decodes` rows have one token
each and take the update kernels, the others those of chunks. States and A_log are float32 at least; the rest
is rounded to the dtype of h after each line.
Mirrors vllm.model_executor.layers.mamba.mamba_mixer2.MambaMixer2 (activation silu).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.cache import CacheOwner, State
from fastkernels.nn.context import by_phase

from ..L1.causal_conv1d import CausalConv1d, CausalConv1dUpdate
from ..L1.gated_rms_norm import Mixer2RMSNormGated
from ..L1.ssd_scan import SSDScan, SSDStateUpdate
from .parallel_linear import ColumnParallelLinear, RowParallelLinear


class MambaMixer2(CacheOwner):
    conv_state: Tensor
    ssm_state: Tensor
    conv_bias: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        ssm_state_size: int,
        conv_kernel_size: int,
        intermediate_size: int,
        use_conv_bias: bool,
        use_bias: bool,
        n_groups: int = 1,
        num_heads: int = 128,
        head_dim: int = 64,
        rms_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.heads, self.groups = (num_heads, head_dim), (n_groups, ssm_state_size)
        shared = n_groups * ssm_state_size
        self.conv_sizes = [intermediate_size, shared, shared]
        self.sizes = [intermediate_size, sum(self.conv_sizes), num_heads]
        self.cache = State(
            (
                ("conv_state", (conv_kernel_size - 1, sum(self.conv_sizes))),
                ("ssm_state", (num_heads, head_dim, ssm_state_size)),
            )
        )
        self.in_proj = ColumnParallelLinear(hidden_size, sum(self.sizes), use_bias)
        self.conv_weight = _parameter(sum(self.conv_sizes), 1, conv_kernel_size)
        self.conv_bias = _parameter(sum(self.conv_sizes)) if use_conv_bias else None
        self.conv, self.conv_update = CausalConv1d(), CausalConv1dUpdate()
        self.A_log = _parameter(num_heads, dtype=self.cache.dtype(torch.get_default_dtype()))
        self.D = _parameter(num_heads)
        self.dt_bias = _parameter(num_heads)
        self.scan, self.scan_update = SSDScan(), SSDStateUpdate()
        self.norm = Mixer2RMSNormGated(intermediate_size, n_groups, rms_norm_eps)
        self.out_proj = RowParallelLinear(intermediate_size, hidden_size, use_bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]. Advances the states of the step's rows."""
        z_TI, mixed_TC, dt_TH = self.in_proj(hidden_states).split(self.sizes, dim=-1)
        conv = (self.conv_weight.squeeze(1), self.conv_bias, self.conv_state)
        mixed_TC = by_phase(self.conv_update, self.conv, (mixed_TC,), conv)
        x_TI, *shared = mixed_TC.split(self.conv_sizes, dim=-1)
        b_TGN, c_TGN = (t.unflatten(-1, self.groups) for t in shared)
        tokens = (x_TI.unflatten(-1, self.heads), dt_TH, b_TGN, c_TGN)
        scan = (self.A_log, self.D, self.dt_bias, self.ssm_state)
        y_THP = by_phase(self.scan_update, self.scan, tokens, scan)
        return self.out_proj(self.norm(y_THP.flatten(-2), z_TI))


def _parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
