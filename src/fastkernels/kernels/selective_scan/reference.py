"""selective_scan and selective_state_update in plain PyTorch: the recurrence, token by token, all rows of a
step at once.

In the dtype of the state. Lengths of chunks are read on the host.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from fastkernels.kernels.lockstep import accumulated, in_lockstep


def selective_state_update(
    u_BI: Tensor,
    delta_BI: Tensor,
    B_BN: Tensor,
    C_BN: Tensor,
    z_BI: Tensor,
    A_log_IN: Tensor,
    D_I: Tensor,
    delta_bias_I: Tensor,
    state_RIN: Tensor,
    rows_B: Tensor,
) -> Tensor:
    u, delta, b, c, z, d, bias = widened(state_RIN.dtype, u_BI, delta_BI, B_BN, C_BN, z_BI, D_I, delta_bias_I)
    state_BIN = state_RIN[rows_B]
    given = (u, softplus(delta + bias), b, c)
    y_BI = _advance(-A_log_IN.exp(), state_BIN, *(x[None] for x in given))[0]
    state_RIN[rows_B] = state_BIN
    return ((y_BI + d * u) * silu(z)).to(u_BI.dtype)


def selective_scan(
    u_TI: Tensor,
    delta_TI: Tensor,
    B_TN: Tensor,
    C_TN: Tensor,
    z_TI: Tensor,
    A_log_IN: Tensor,
    D_I: Tensor,
    delta_bias_I: Tensor,
    state_RIN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    u, delta, b, c, z, d, bias = widened(state_RIN.dtype, u_TI, delta_TI, B_TN, C_TN, z_TI, D_I, delta_bias_I)
    advance = partial(_advance, -A_log_IN.exp())
    given = (u, softplus(delta + bias), b, c)
    y_TI = in_lockstep(advance, state_RIN, rows_B, query_starts_B1, given, like=u)
    return ((y_TI + d * u) * silu(z)).to(u_TI.dtype)


def widened(dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype) for x in tensors)


def _advance(
    a_IN: Tensor, state_BIN: Tensor, u_SBI: Tensor, step_SBI: Tensor, b_SBN: Tensor, c_SBN: Tensor
) -> Tensor:
    """Some tokens: the states in place, and what C reads of each, [S, B, I]."""
    decay_SBIN = (step_SBI[..., None] * a_IN).exp()
    states_SBIN = accumulated(state_BIN, decay_SBIN, (step_SBI * u_SBI)[..., None] * b_SBN[..., None, :])
    return torch.matmul(states_SBIN, c_SBN[..., None]).squeeze(-1)
