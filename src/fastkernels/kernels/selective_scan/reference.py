"""selective_scan and selective_state_update in plain PyTorch: the recurrence, token by token, all rows of a
step at once.

In the dtype of the state. Lengths of chunks are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from fastkernels.kernels.lockstep import lockstep


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
    y_BI = _advance(state_BIN, u, softplus(delta + bias), b, c, -A_log_IN.exp())
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
    a_IN = -A_log_IN.exp()
    order_B, tokens_T, active = lockstep(query_starts_B1)
    given_TI, steps_TI, b, c = (x[tokens_T] for x in (u, softplus(delta + bias), b, c))
    rows_B, read_TI, first = rows_B[order_B], torch.empty_like(given_TI), 0
    state_BIN = state_RIN[rows_B]
    for count in active:
        at = slice(first, first + count)
        read_TI[at] = _advance(state_BIN[:count], given_TI[at], steps_TI[at], b[at], c[at], a_IN)
        first += count
    state_RIN[rows_B] = state_BIN
    y_TI = torch.empty_like(u)
    y_TI[tokens_T] = read_TI
    return ((y_TI + d * u) * silu(z)).to(u_TI.dtype)


def widened(dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(dtype) for x in tensors)


def _advance(
    state_BIN: Tensor, u_BI: Tensor, step_BI: Tensor, b_BN: Tensor, c_BN: Tensor, a_IN: Tensor
) -> Tensor:
    """One token: the states in place, and what C reads of them."""
    state_BIN.mul_((step_BI[..., None] * a_IN).exp()).addcmul_((step_BI * u_BI)[..., None], b_BN[:, None])
    return torch.matmul(state_BIN, c_BN[..., None]).squeeze(-1)
