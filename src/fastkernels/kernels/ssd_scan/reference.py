"""ssd_scan and ssd_state_update in plain PyTorch: the recurrence, token by token, all rows of a step at once.

In the dtype of the state. Lengths of chunks are read on the host.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fastkernels.kernels.lockstep import accumulated, in_lockstep


def ssd_state_update(
    x_BHP: Tensor,
    dt_BH: Tensor,
    B_BGN: Tensor,
    C_BGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
) -> Tensor:
    x, step, b, c = widened(state_RHPN.dtype, x_BHP, dt_BH, B_BGN, C_BGN, dt_bias_H)
    state_BHPN = state_RHPN[rows_B]
    y_BHP = _advance(-A_log_H.exp(), state_BHPN, *(t[None] for t in (x, step, b, c)))[0]
    state_RHPN[rows_B] = state_BHPN
    return (y_BHP + D_H.to(x.dtype)[:, None] * x).to(x_BHP.dtype)


def ssd_scan(
    x_THP: Tensor,
    dt_TH: Tensor,
    B_TGN: Tensor,
    C_TGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    x, step, b, c = widened(state_RHPN.dtype, x_THP, dt_TH, B_TGN, C_TGN, dt_bias_H)
    advance = partial(_advance, -A_log_H.exp())
    y_THP = in_lockstep(advance, state_RHPN, rows_B, query_starts_B1, (x, step, b, c), like=x)
    return (y_THP + D_H.to(x.dtype)[:, None] * x).to(x_THP.dtype)


def widened(
    dtype: torch.dtype, x_THP: Tensor, dt_TH: Tensor, B_TGN: Tensor, C_TGN: Tensor, dt_bias_H: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, the steps [T, H], and B and C of each head [T, H, N], in `dtype`."""
    step_TH = softplus(dt_TH.to(dtype) + dt_bias_H.to(dtype))
    shared = x_THP.shape[1] // B_TGN.shape[1]  # consecutive heads of a group
    b_THN, c_THN = (t.to(dtype).repeat_interleave(shared, 1) for t in (B_TGN, C_TGN))
    return x_THP.to(dtype), step_TH, b_THN, c_THN


def _advance(
    a_H: Tensor, state_BHPN: Tensor, x_SBHP: Tensor, step_SBH: Tensor, b_SBHN: Tensor, c_SBHN: Tensor
) -> Tensor:
    """Some tokens: the states in place, and what C reads of each, [S, B, H, P]."""
    decay_SBH11 = (step_SBH * a_H).exp()[..., None, None]
    increment_SBHPN = (step_SBH[..., None] * x_SBHP)[..., None] * b_SBHN[..., None, :]
    states_SBHPN = accumulated(state_BHPN, decay_SBH11, increment_SBHPN)
    return torch.matmul(states_SBHPN, c_SBHN[..., None]).squeeze(-1)
