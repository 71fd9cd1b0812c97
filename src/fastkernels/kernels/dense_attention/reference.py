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
    causal: bool,
    bias_HQS: Tensor | None,
) -> Tensor:
    dtype = torch.promote_types(q_THK.dtype, torch.float32)
    query_lens, key_lens = lengths(query_starts_B1, key_starts_B1)
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    rows = zip(*(x.split(lens) for x, lens in zip((q_THK, k_SHK, v_SHK, o_THK), (
        query_lens, key_lens, key_lens, query_lens))))  # fmt: skip
    for q, k, v, o in rows:
        if not len(q):
            continue
        k, v = (x.to(dtype).repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        k_HKL, v_HLK = k.permute(1, 2, 0), v.transpose(0, 1)
        num_keys = k_HKL.shape[2]
        step = max(1, MAX_ELEMENTS // max(1, k_HKL.shape[0] * num_keys))
        for start in range(0, len(q), step):
            tile = slice(start, min(start + step, len(q)))
            scores_HQL = q[tile].to(dtype).transpose(0, 1) @ k_HKL * scale
            if bias_HQS is not None:
                scores_HQL += bias_HQS[:, tile, :num_keys]
            if causal:
                later_QL = torch.ones_like(scores_HQL[0], dtype=torch.bool).triu(start + 1)
                scores_HQL.masked_fill_(later_QL, -torch.inf)
            o[tile] = (scores_HQL.softmax(-1) @ v_HLK).transpose(0, 1)
    return o_THK
