"""chunk_delta_rule and recurrent_delta_rule in plain PyTorch: the recurrence, token by token, all rows of a
step at once.

In the dtype of the state. Lengths of chunks are read on the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fastkernels.kernels.lockstep import in_lockstep

EPS = 1e-6  # under the root of a key's length


class Tokens(NamedTuple):
    """What the recurrence takes of each token and head of values. The query is scaled, log_decay at most
    0."""

    q_THK: Tensor
    k_THK: Tensor
    v_THV: Tensor
    log_decay_THG: Tensor
    beta_TH1: Tensor


def recurrent_delta_rule(
    q_BJK: Tensor,
    k_BJK: Tensor,
    v_BHV: Tensor,
    g_BHG: Tensor,
    b_BH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
) -> Tensor:
    tokens = widened(state_RHKV.dtype, q_BJK, k_BJK, v_BHV, g_BHG, b_BH, A_log_H, dt_bias_HG, scale)
    state_BHKV = state_RHKV[rows_B]
    o_BHV = _advance(state_BHKV, *(x[None] for x in tokens))[0]
    state_RHKV[rows_B] = state_BHKV
    return o_BHV.to(q_BJK.dtype)


def chunk_delta_rule(
    q_TJK: Tensor,
    k_TJK: Tensor,
    v_THV: Tensor,
    g_THG: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    tokens = widened(state_RHKV.dtype, q_TJK, k_TJK, v_THV, g_THG, b_TH, A_log_H, dt_bias_HG, scale)
    o_THV = in_lockstep(_advance, state_RHKV, rows_B, query_starts_B1, tokens, like=tokens.v_THV)
    return o_THV.to(q_TJK.dtype)


def widened(
    dtype: torch.dtype,
    q_TJK: Tensor,
    k_TJK: Tensor,
    v_THV: Tensor,
    g_THG: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
) -> Tokens:
    """All of them in `dtype`."""
    shared = v_THV.shape[1] // q_TJK.shape[1]  # consecutive heads of values
    q_THK, k_THK = (_direction(x.to(dtype)).repeat_interleave(shared, 1) for x in (q_TJK, k_TJK))
    step_THG = softplus(g_THG.to(dtype) + dt_bias_HG.to(dtype))
    if g_THG.ndim == 2:
        step_THG = step_THG[..., None]
    log_decay_THG = -A_log_H.to(dtype).exp()[:, None] * step_THG
    return Tokens(q_THK * scale, k_THK, v_THV.to(dtype), log_decay_THG, b_TH.to(dtype).sigmoid()[..., None])


def _direction(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


def _advance(state_BHKV: Tensor, *tokens_SB: Tensor) -> Tensor:
    """Some tokens: the state in place, and what the query reads of it after each, [S, B, H, V]."""
    read = []
    for q_BHK, k_BHK, v_BHV, log_decay_BHG, beta_BH1 in zip(*tokens_SB):
        state_BHKV.mul_(log_decay_BHG.exp()[..., None])
        new_BHV = beta_BH1 * (v_BHV - _read(state_BHKV, k_BHK))
        state_BHKV.add_(k_BHK[..., None] * new_BHV[..., None, :])
        read.append(_read(state_BHKV, q_BHK))
    return torch.stack(read)


def _read(state_BHKV: Tensor, x_BHK: Tensor) -> Tensor:
    return torch.matmul(x_BHK[..., None, :], state_BHKV).squeeze(-2)
