"""Generation that fills blocks of masked positions by confidence, as diffusion language models do.

    tokens = prompt + G masks;  for each block of L positions, from left to right:
        until the block has no mask:  fill its most confident predictions in, the others stay masks

How many a step fills: with S steps for a block m_i = floor(L / S) + [i < L mod S]; with a threshold all whose
confidence reaches it, and always the most confident one. Equal confidences: the first position.
B requests, L positions of a block, T tokens of all requests.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.batching import described, ids_of, largest_unsigned
from fastkernels.nn.sequences import SMALL, Sequences, stepped


@dataclass(frozen=True)
class Filling:
    """How the steps of one launch fill a block. counts: positions of each step; threshold: None, or the
    confidence that fills more than those. cached: only the first step reads all tokens; later ones read the
    block beside the keys and values that the first one left of the rest, an approximation."""

    length: int
    counts: tuple[int, ...]
    threshold: float | None
    cached: bool


def filling(gen_length: Any, block_length: Any, steps: Any, threshold: Any, cached: Any) -> Filling:
    """RequestError unless blocks make up gen_length, and steps are as many for each and fit them."""
    for name, value in (("gen_length", gen_length), ("block_length", block_length), ("steps", steps)):
        require_number(name, value, 1, math.inf, whole=True)
    if gen_length % block_length:
        raise RequestError(f"gen_length {gen_length} is no multiple of block_length {block_length}")
    blocks = gen_length // block_length
    if steps % blocks or steps // blocks > block_length:
        raise RequestError(
            f"steps {steps} do not fit {blocks} blocks of {block_length}: give a multiple of {blocks} up to "
            f"{gen_length}"
        )
    of_block = steps // blocks
    if threshold is not None:
        require_number("threshold", threshold, 0, 1)
        counts = [1] * of_block
    else:
        counts = [block_length // of_block + (i < block_length % of_block) for i in range(of_block)]
    return Filling(block_length, tuple(counts), threshold, bool(cached))


def chosen(
    tokens_BL: Tensor, log_confidence_BL: Tensor, mask_id: int, count: int, threshold: float | None
) -> Tensor:
    """bool [B, L]: the masks that a step fills."""
    is_mask_BL = tokens_BL == mask_id
    score_BL = log_confidence_BL.masked_fill(~is_mask_BL, -torch.inf)
    order_BL = score_BL.sort(dim=-1, descending=True, stable=True).indices
    rank_BL = order_BL.argsort(dim=-1)
    is_chosen_BL = rank_BL < count
    if threshold is not None:
        is_chosen_BL |= score_BL >= (math.log(threshold) if threshold else -torch.inf)
    return is_chosen_BL & is_mask_BL


class Blocks(Sequences):
    """Calls (ids [n] with masks, begin, Filling, seed, temperature, forced int64 [L], steps done): ids as
    Sequences takes them, begin the place of the block's first token.

    A launch gets ids and positions int64 [T], starts int32 [B+1], and of each request begin and seed int64,
    temperature float32, steps done int64 [B] and forced [B, L]; the longest row's tokens; the Filling.
    """

    def key(self, args: tuple[Any, ...]) -> Hashable:
        return args[2]

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        ids, begins, fillings, seeds, temperatures, forced, done = (list(column) for column in zip(*calls))
        length, tokens = fillings[0].length, sum(map(len, ids))
        if is_padded := self.pads and tokens <= SMALL:
            added = stepped(tokens + length) - tokens  # a row that nobody asked for, without a mask
            ids.append(np.zeros(added, dtype=np.int64))
            forced.append(torch.full((length,), -1))
            for column in (begins, seeds, temperatures, done):
                column.append(0)
        lengths = [len(row) for row in ids]
        positions_T = np.concatenate([np.arange(n) for n in lengths])
        numbers = (torch.tensor(column, dtype=torch.int64) for column in (begins, seeds, done))
        begins_B, seeds_B, done_B = numbers
        return [
            torch.from_numpy(np.concatenate(ids).astype(np.int64)),
            torch.from_numpy(positions_T),
            torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
            begins_B,
            seeds_B,
            torch.tensor(temperatures, dtype=torch.float32),
            done_B,
            torch.stack(forced),
            stepped(max(lengths)) if is_padded else max(lengths),
            fillings[0],
        ]

    def divide(self, result: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [[part[i] for part in result] for i in range(len(calls))]


def require_number(name: str, value: Any, low: float, high: float, whole: bool = False) -> None:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "an integer" if whole else "a number"
        bound = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise RequestError(f"{name} must be {kind} {bound}, not {value!r:.60}")


def require_forced(forced: Any, gen_length: int, vocab_size: int, mask_id: int) -> Tensor:
    """The ids on the host, int64 [G]."""
    is_ids = isinstance(forced, Tensor) and forced.dtype in (torch.int64, torch.int32)
    if not is_ids or forced.shape != (gen_length,):
        raise RequestError(f"forced must be int64 [{gen_length}], gen_length ids, not {described(forced)}")
    ids_G = ids_of(forced)
    if largest_unsigned(ids_G) >= vocab_size or (ids_G == mask_id).any():
        raise RequestError(f"forced has an id that is none of 0 .. {vocab_size - 1}, or the mask {mask_id}")
    return torch.from_numpy(ids_G)
