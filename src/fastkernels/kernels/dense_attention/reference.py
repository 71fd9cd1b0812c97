"""dense_attention in plain PyTorch: row after row, in tiles of queries. Starts are read on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.dense_attention.rows import lengths

# Elements of scores at a time: 128 MiB in float64.
MAX_ELEMENTS = 2**24


def dense_attention(
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    query_starts_B1: Tensor,
    key_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
    max_key_len: int,
) -> Tensor:
    dtype = torch.promote_types(q_THK.dtype, torch.float32)
    query_lens, key_lens = lengths(query_starts_B1, key_starts_B1)
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    rows = zip(*(x.split(lens) for x, lens in zip((q_THK, k_SHK, v_SHK, o_THK), (
        query_lens, key_lens, key_lens, query_lens))))  # fmt: skip
    for q, k, v, o in rows:
        k_HKL, v_HLK = k.to(dtype).permute(1, 2, 0), v.to(dtype).transpose(0, 1)
        step = max(1, MAX_ELEMENTS // max(1, k_HKL.shape[0] * k_HKL.shape[2]))
        for q_tile, o_tile in zip(q.split(step), o.split(step)):
            scores_HQL = q_tile.to(dtype).transpose(0, 1) @ k_HKL * scale
            o_tile.copy_((scores_HQL.softmax(-1) @ v_HLK).transpose(0, 1))
    return o_THK
