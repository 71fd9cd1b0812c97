"""Reading a paged cache back into dense tensors: which cache rows hold the keys that a batch of queries may
see.

B rows · J key/value heads · S keys of the longest row · K head dim · N blocks of a table · P block size
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class KeyRows(NamedTuple):
    """Where the keys of each row lie, and at which positions of the sequence."""

    index: Tensor  # int64 [B * J * S] into the cache seen as [N * P * J, K]
    position_BS: Tensor  # int64, position of the key; at least seq_len for padding


def key_rows(
    block_tables_BN: Tensor, seq_lens_B: Tensor, first_B: Tensor, width: int, block_size: int, num_heads: int
) -> KeyRows:
    """Rows of the cache for keys first_B .. first_B + width - 1 of each row, in order (row, head, key).

    Keys at or after seq_len are padding: their index repeats the last key of the row, so that no block is
    touched which the row does not own (it may hold anything, NaN too).
    """
    device = block_tables_BN.device
    position_BS = first_B.long()[:, None] + torch.arange(width, device=device)
    owned_BS = position_BS.minimum(seq_lens_B.long()[:, None] - 1).clamp_(min=0)
    block_BS = block_tables_BN.gather(1, owned_BS // block_size)
    slot_BS = block_BS.long() * block_size + owned_BS % block_size
    heads_J = torch.arange(num_heads, device=device)
    index_BJS = slot_BS[:, None, :] * num_heads + heads_J[:, None]
    return KeyRows(index_BJS.flatten(), position_BS)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Of the last dimension; sinks, which broadcast to the others, are one more column there, that is cut."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores.dtype).expand(scores.shape[:-1])[..., None]
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]


def with_empty_key(x_BJSK: Tensor) -> Tensor:
    """Keys or values with a row of zeros behind them, which is a sink where its bias is one."""
    return torch.nn.functional.pad(x_BJSK, (0, 0, 0, 1))


def gather(cache: Tensor, rows: KeyRows, dtype: torch.dtype) -> Tensor:
    """The cache [N, P, J, K] at `rows` as [B, J, S, K] in `dtype`. The cache is one contiguous block."""
    batch, keys = rows.position_BS.shape
    flat = cache.view(-1, cache.shape[3]).index_select(0, rows.index)
    return flat.view(batch, cache.shape[2], keys, cache.shape[3]).to(dtype)
