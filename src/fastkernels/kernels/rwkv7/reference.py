"""chunk_rwkv7 and recurrent_rwkv7 in plain PyTorch: the recurrence, token by token, all rows of a step at
once.

In the dtype of the state. Lengths of chunks are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.lockstep import in_lockstep


def recurrent_rwkv7(
    r_BHK: Tensor,
    w_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    kk_BHK: Tensor,
    a_BHK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
) -> Tensor:
    state_BHKV = state_RHKV[rows_B]
    tokens = _widened(r_BHK, w_BHK, k_BHK, v_BHV, kk_BHK, a_BHK, dtype=state_RHKV.dtype)
    o_BHV = _advance(state_BHKV, *(x[None] for x in tokens))[0]
    state_RHKV[rows_B] = state_BHKV
    return o_BHV.to(r_BHK.dtype)


def chunk_rwkv7(
    r_THK: Tensor,
    w_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    kk_THK: Tensor,
    a_THK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    tokens = _widened(r_THK, w_THK, k_THK, v_THV, kk_THK, a_THK, dtype=state_RHKV.dtype)
    o_THV = in_lockstep(_advance, state_RHKV, rows_B, query_starts_B1, tokens, like=tokens[3])
    return o_THV.to(r_THK.dtype)


def _widened(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, *, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """r, decay, k, v, what is removed, and how much of it goes where."""
    kk = kk.to(dtype)
    return r.to(dtype), w.to(dtype).exp(), k.to(dtype), v.to(dtype), kk, kk * a.to(dtype)


def _advance(state_BHKV: Tensor, *tokens_SBHX: Tensor) -> Tensor:
    """Some tokens: the state in place, and what r reads of it after each, [S, B, H, V]."""
    found = []
    for r, decay, k, v, kk, beta in zip(*tokens_SBHX, strict=True):
        removed_BH1V = torch.matmul(kk[..., None, :], state_BHKV)
        state_BHKV.mul_(decay[..., None]).sub_(beta[..., None] * removed_BH1V)
        state_BHKV.add_(k[..., None] * v[..., None, :])
        found.append(torch.matmul(r[..., None, :], state_BHKV).squeeze(-2))
    return torch.stack(found)
