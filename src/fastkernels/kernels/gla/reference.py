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
    gate_BHK: Tensor | None,
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
    gate_THK: Tensor | None,
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


def _widened(q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    q, k, v = (x.to(dtype) for x in (q, k, v))
    decay = (1 - lost(q))[:, None].expand_as(q) if gate is None else gate.to(dtype).exp()
    return q, k, v, decay


def lost(q_THK: Tensor) -> Tensor:
    """What each head forgets of its state at every token of retention, [H], exactly."""
    heads_H = torch.arange(q_THK.shape[-2], dtype=q_THK.dtype, device=q_THK.device)
    return torch.exp2(-5 - heads_H)


def _advance(
    state_BHKV: Tensor, q_SBHK: Tensor, k_SBHK: Tensor, v_SBHV: Tensor, decay_SBHK: Tensor
) -> Tensor:
    """Some tokens: the state in place, and what the query reads of it after each, [S, B, H, V]."""
    written_SBHKV = k_SBHK[..., None] * v_SBHV[..., None, :]
    states_SBHKV = accumulated(state_BHKV, decay_SBHK[..., None], written_SBHKV)
    return torch.matmul(q_SBHK[..., None, :], states_SBHKV).squeeze(-2)
