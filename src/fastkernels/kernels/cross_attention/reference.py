"""cross_attention in plain PyTorch: row after row. Starts and rows are read on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.plans import planned


def host_rows(query_starts_B1: Tensor, rows_B: Tensor) -> list[tuple[int, int]]:
    """(queries, row of the pools) of each row; read once for all layers of a forward."""
    return planned(
        "cross_attention.rows",
        (query_starts_B1, rows_B),
        (),
        lambda: list(zip(query_starts_B1.diff().tolist(), rows_B.tolist())),
    )


def cross_attention(
    q_THK: Tensor,
    k_RSHK: Tensor,
    v_RSHK: Tensor,
    query_starts_B1: Tensor,
    rows_B: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    dtype = torch.promote_types(q_THK.dtype, torch.float32)
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    rows = host_rows(query_starts_B1, rows_B)
    lengths = [length for length, _ in rows]
    for q_LHK, o_LHK, (_, row) in zip(q_THK.split(lengths), o_THK.split(lengths), rows):
        scores_HLS = torch.einsum("lhk,shk->hls", q_LHK.to(dtype), k_RSHK[row].to(dtype)) * scale
        o_LHK.copy_(torch.einsum("hls,shk->lhk", scores_HLS.softmax(-1), v_RSHK[row].to(dtype)))
    return o_THK
