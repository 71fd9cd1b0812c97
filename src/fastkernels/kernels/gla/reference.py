"""chunk_gla and recurrent_gla in plain PyTorch: the recurrence, token by token, all rows of a step at once.

In the dtype of the state. Lengths of chunks are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.lockstep import accumulated, in_lockstep


def recurrent_gla(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    gate_BHK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    scale: float,
) -> Tensor:
    q, k, v, decay = _widened(q_BHK, k_BHK, v_BHV, gate_BHK, state_RHKV.dtype)
    state_BHKV = state_RHKV[rows_B]
    o_BHV = _advance(state_BHKV, *(x[None] for x in (q * scale, k, v, decay)))[0]
    state_RHKV[rows_B] = state_BHKV
    return o_BHV.to(q_BHK.dtype)


def chunk_gla(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_THK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    q, k, v, decay = _widened(q_THK, k_THK, v_THV, gate_THK, state_RHKV.dtype)
    given = (q * scale, k, v, decay)
    o_THV = in_lockstep(_advance, state_RHKV, rows_B, query_starts_B1, given, like=v)
    return o_THV.to(q_THK.dtype)


def _widened(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return q.to(dtype), k.to(dtype), v.to(dtype), gate.to(dtype).exp()


def _advance(
    state_BHKV: Tensor, q_SBHK: Tensor, k_SBHK: Tensor, v_SBHV: Tensor, decay_SBHK: Tensor
) -> Tensor:
    """Some tokens: the state in place, and what the query reads of it after each, [S, B, H, V]."""
    written_SBHKV = k_SBHK[..., None] * v_SBHV[..., None, :]
    states_SBHKV = accumulated(state_BHKV, decay_SBHK[..., None], written_SBHKV)
    return torch.matmul(q_SBHK[..., None, :], states_SBHKV).squeeze(-2)
