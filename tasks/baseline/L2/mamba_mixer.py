"""The mixer of Mamba 1, from hidden states to hidden states; its cache is two states for each request.

    [u | z] = x Win^T;   u = silu(causal_conv(u));   [delta | B | C] = u Wx^T
    delta, B, C = rms_norm(delta), rms_norm(B), rms_norm(C)                         only with use_rms_norm
    y = selective_scan(u, delta Wdt^T, B, C, z)
    out = y Wout^T

T tokens, D hidden, I intermediate, N values of a channel's state, R rank of the time step, K taps. The bias
of the time step is added inside the scan. The ambient step says which rows the tokens belong to and where
their states lie: its first `num_decodes` rows have one token each and take the update kernels, the others
those of chunks. States and A_log are float32 at least; the rest is rounded to the dtype of x after each
line.
Mirrors vllm.model_executor.layers.mamba.mamba_mixer.MambaMixer (activation silu).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels.nn.cache import CacheOwner, State
from fastkernels.nn.context import by_phase

from ..L1.causal_conv1d import CausalConv1d, CausalConv1dUpdate
from ..L1.linear import Linear
from ..L1.rms_norm import RMSNorm
from ..L1.selective_scan import SelectiveScan, SelectiveStateUpdate
from .parallel_linear import ColumnParallelLinear, MergedColumnParallelLinear, RowParallelLinear


class MambaMixer(CacheOwner):
    conv_state: Tensor
    ssm_state: Tensor
    conv_bias: nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        ssm_state_size: int,
        conv_kernel_size: int,
        intermediate_size: int,
        time_step_rank: int,
        use_conv_bias: bool,
        use_bias: bool,
        use_rms_norm: bool,
        rms_norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.sizes = [time_step_rank, ssm_state_size, ssm_state_size]
        self.cache = State(
            (
                ("conv_state", (conv_kernel_size - 1, intermediate_size)),
                ("ssm_state", (intermediate_size, ssm_state_size)),
            )
        )
        self.in_proj = MergedColumnParallelLinear(hidden_size, [intermediate_size] * 2, use_bias)
        self.conv_weight = _parameter(intermediate_size, 1, conv_kernel_size)
        self.conv_bias = _parameter(intermediate_size) if use_conv_bias else None
        self.conv, self.conv_update = CausalConv1d(), CausalConv1dUpdate()
        self.x_proj = Linear(intermediate_size, sum(self.sizes))
        norms = [RMSNorm(size, rms_norm_eps) if use_rms_norm else nn.Identity() for size in self.sizes]
        self.dt_layernorm, self.b_layernorm, self.c_layernorm = norms
        self.dt_proj = ColumnParallelLinear(time_step_rank, intermediate_size)
        self.dt_bias = _parameter(intermediate_size)
        wide = self.cache.dtype(torch.get_default_dtype())
        self.A_log = _parameter(intermediate_size, ssm_state_size, dtype=wide)
        self.D = _parameter(intermediate_size)
        self.scan, self.scan_update = SelectiveScan(), SelectiveStateUpdate()
        self.out_proj = RowParallelLinear(intermediate_size, hidden_size, use_bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]. Advances the states of the step's rows."""
        u_TI, z_TI = self.in_proj(hidden_states).chunk(2, dim=-1)
        conv = (self.conv_weight.squeeze(1), self.conv_bias, self.conv_state)
        u_TI = by_phase(self.conv_update, self.conv, (u_TI,), conv)
        low_TR, B_TN, C_TN = self.x_proj(u_TI).split(self.sizes, dim=-1)
        delta_TI = self.dt_proj(self.dt_layernorm(low_TR))
        tokens = (u_TI, delta_TI, self.b_layernorm(B_TN), self.c_layernorm(C_TN), z_TI)
        scan = (self.A_log, self.D, self.dt_bias, self.ssm_state)
        return self.out_proj(by_phase(self.scan_update, self.scan, tokens, scan))


def _parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
