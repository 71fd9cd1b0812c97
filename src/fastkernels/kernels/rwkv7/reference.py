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


def _advance(
    state_BHKV: Tensor, r: Tensor, decay: Tensor, k: Tensor, v: Tensor, kk: Tensor, beta: Tensor
) -> Tensor:
    """Some tokens [S, B, H, ...]: the state in place, and what r reads of it after each, [S, B, H, V]."""
    states_SBHKV = k[..., None] * v[..., None, :]  # what is added, to which the rest comes
    last_BHKV = state_BHKV
    steps = (x.unbind(0) for x in (states_SBHKV, decay[..., None], kk[..., None, :], beta[..., None]))
    for step_BHKV, decay_BHK1, kk_BH1K, beta_BHK1 in zip(*steps):
        removed_BH1V = torch.matmul(kk_BH1K, last_BHKV)
        step_BHKV.addcmul_(decay_BHK1, last_BHKV).addcmul_(beta_BHK1, removed_BH1V, value=-1)
        last_BHKV = step_BHKV
    state_BHKV.copy_(last_BHKV)
    return torch.matmul(r[..., None, :], states_SBHKV).squeeze(-2)
