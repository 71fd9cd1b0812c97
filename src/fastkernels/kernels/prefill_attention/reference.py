"""prefill_attention in plain PyTorch: padded batches of query tiles, one batched product each way.

A tile of a long row is a row with a shorter sequence: causality hides the rest. Tiles that fit are padded
together, so a batch of short prompts costs a few calls and 8,192 tokens of 32 heads never make a [T, T, H]
tensor. The softmax and both products run in at least float32 (float64 inputs stay float64). Lengths are read
on the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels.kv_cache.gather import KeyRows, gather, key_rows, softmax
from fastkernels.kernels.plans import planned

# Elements of scores, or of gathered keys, at a time: 128 MiB in float64.
MAX_ELEMENTS = 2**24


class Tile(NamedTuple):
    row: int
    first_token: int
    num_queries: int
    seq_len: int  # up to and including the tile's last query


class TileBatch(NamedTuple):
    queries: Tensor  # int64 [R * Q] tokens, short tiles repeat their last one
    outputs: Tensor | None  # int64, the rows of [R * Q] that are real; None if all are
    tokens: Tensor  # int64, the tokens that they belong to
    keys: KeyRows
    hidden_RQS: Tensor  # bool, keys that a query must not see


def tiles(query_starts: list[int], seq_lens: list[int], num_heads: int, window: int) -> list[Tile]:
    """Rows cut into tiles whose scores fit into MAX_ELEMENTS."""
    found = []
    for row, seq_len in enumerate(seq_lens):
        start, end = query_starts[row] - query_starts[0], query_starts[row + 1] - query_starts[0]
        visible = min(seq_len, window + end - start) if window else seq_len
        step = max(1, MAX_ELEMENTS // max(1, num_heads * visible))
        for first in range(start, end, step):
            last = min(first + step, end)
            found.append(Tile(row, first, last - first, seq_len - (end - last)))
    return found


def batches(tiles: list[Tile], num_heads: int, head_dim: int, window: int) -> list[list[Tile]]:
    """Consecutive tiles grouped so that neither padded scores nor gathered keys exceed MAX_ELEMENTS."""
    found: list[list[Tile]] = []
    longest = widest = 0
    for tile in tiles:
        longest, widest = max(longest, tile.num_queries), max(widest, _num_keys(tile, window))
        padded = (len(found[-1]) + 1 if found else 1) * num_heads * widest * max(longest, head_dim)
        if found and padded <= MAX_ELEMENTS:
            found[-1].append(tile)
        else:
            found.append([tile])
            longest, widest = tile.num_queries, _num_keys(tile, window)
    return found


def _num_keys(tile: Tile, window: int) -> int:
    return min(tile.seq_len, window + tile.num_queries - 1) if window else tile.seq_len


def tile_batch(
    batch: list[Tile], block_tables_BN: Tensor, window: int, block_size: int, num_heads: int
) -> TileBatch:
    """Indices and mask of one padded batch."""
    device = block_tables_BN.device
    facts = torch.tensor(batch, device=device)
    row_R, first_R, num_R, len_R = facts.unbind(1)
    width = max(_num_keys(tile, window) for tile in batch)
    first_key_R = (len_R - num_R - window + 1).clamp(min=0) if window else torch.zeros_like(len_R)
    keys = key_rows(block_tables_BN[row_R], len_R, first_key_R, width, block_size, num_heads)

    longest = max(tile.num_queries for tile in batch)
    i_Q = torch.arange(longest, device=device)
    real_RQ = i_Q < num_R[:, None]
    query_RQ = i_Q.minimum(num_R[:, None] - 1)
    position_RQ1 = (len_R[:, None] - num_R[:, None] + query_RQ)[..., None]
    hidden_RQS = keys.position_BS[:, None] > position_RQ1
    if window:
        hidden_RQS |= keys.position_BS[:, None] <= position_RQ1 - window
    token_RQ = first_R[:, None] + query_RQ
    padded = any(tile.num_queries < longest for tile in batch)
    outputs = real_RQ.flatten().nonzero().squeeze(1) if padded else None
    tokens = token_RQ.flatten() if outputs is None else token_RQ.flatten()[outputs]
    return TileBatch(token_RQ.flatten(), outputs, tokens, keys, hidden_RQS)


def plan(
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    window: int,
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> list[TileBatch]:
    """All padded batches of a step, the same for every layer."""
    cut = tiles(query_starts_B1.tolist(), seq_lens_B.tolist(), num_heads, window)
    grouped = batches(cut, num_heads, head_dim, window)
    return [tile_batch(batch, block_tables_BN, window, block_size, num_kv_heads) for batch in grouped]


def prefill_attention(
    q_THK: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts_B1: Tensor,
    seq_lens_B: Tensor,
    block_tables_BN: Tensor,
    scale: float,
    window: int,
    max_query_len: int,
    max_seq_len: int,
    sinks_H: Tensor | None = None,
) -> Tensor:
    _, block_size, num_kv_heads, head_dim = k_cache.shape
    num_heads = q_THK.shape[1]
    made_from = (query_starts_B1, seq_lens_B, block_tables_BN)
    static = (window, block_size, num_heads, num_kv_heads, head_dim)
    dtype = torch.promote_types(q_THK.dtype, torch.float32)
    o_THK = torch.empty(q_THK.shape, dtype=q_THK.dtype, device=q_THK.device)
    for batch in planned("prefill_attention", made_from, static, lambda: plan(*made_from, *static)):
        num_tiles, longest, width = batch.hidden_RQS.shape
        q_RQJGK = q_THK[batch.queries].to(dtype).view(num_tiles, longest, num_kv_heads, -1, head_dim)
        # The queries that share a key/value head are the rows of one product: [R * J, G * Q, K].
        q = q_RQJGK.permute(0, 2, 3, 1, 4).reshape(num_tiles * num_kv_heads, -1, head_dim)
        k, v = (gather(cache, batch.keys, dtype).flatten(0, 1) for cache in (k_cache, v_cache))
        scores_RHQS = (q @ k.mT).mul_(scale).view(num_tiles, num_heads, longest, width)
        scores_RHQS.masked_fill_(batch.hidden_RQS[:, None], -torch.inf)
        sinks_H1 = None if sinks_H is None else sinks_H[:, None]
        o = softmax(scores_RHQS, sinks_H1).view(num_tiles * num_kv_heads, -1, width) @ v
        o_RQHK = o.view(num_tiles, num_heads, longest, head_dim).transpose(1, 2)
        flat = o_RQHK.reshape(-1, num_heads, head_dim).to(q_THK.dtype)
        o_THK[batch.tokens] = flat if batch.outputs is None else flat[batch.outputs]
    return o_THK
