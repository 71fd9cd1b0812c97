"""Token ids of requests of any length as one launch, and each request's rows of the result.

A small launch on a GPU is bound by the host, unless it is a graph that was captured before. So it is padded
with rows that nobody asked for, to few different numbers of tokens, rows and longest row; a large one is not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastkernels.errors import RequestError
from fastkernels.nn.batching import Crossing, described, ids_of, largest_unsigned, require_values

# A launch of so many tokens keeps a GPU busy for longer than its kernels take to be launched (estimated).
SMALL = 4096
STEPS = 8  # padded sizes between two powers of two: at most an eighth is padding
LEAST = 16


class Sequences:
    """Ids [n], int64 or int32, each below `vocab_size`, up to `max_length` of them.

    A launch gets ids and positions int32 [T], starts int32 [B+1] of the requests' rows, and the longest
    row's tokens. Positions of a request count from `first`. of_tokens: of each tensor that the launch
    returns, whether it has a row for each token [T, ...] or one for each request [B, ...].
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        device: torch.device,
        first: int = 0,
        of_tokens: Sequence[bool] = (True,),
    ) -> None:
        self.vocab_size, self.max_length, self.device = vocab_size, max_length, device
        self.first, self.of_tokens, self.pads = first, of_tokens, device.type == "cuda"

    def read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The ids as an array; a RequestError names what is wrong with them."""
        ids = args[0]
        if isinstance(ids, Tensor):
            require_values("token ids", ids)
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
            raise RequestError(
                f"token ids must be an int64 or int32 tensor or array [tokens], not {described(ids)}"
            )
        if not (length := ids.numel()):
            raise RequestError("a request without token ids: give at least one")
        if length > self.max_length:
            raise RequestError(
                f"{length} token ids: the model takes up to {self.max_length}. Cut the text into parts"
            )
        if largest_unsigned(ids_N := ids_of(ids)) >= self.vocab_size:  # for ids on a GPU the host waits here
            low, high = ids_N.min(), ids_N.max()
            raise RequestError(
                f"token id {low if low < 0 else high}: the model's vocabulary is 0 .. {self.vocab_size - 1}. "
                "Use the tokenizer of its checkpoint"
            )
        return ids_N, *args[1:]

    def key(self, args: tuple[Any, ...]) -> Hashable:
        return None

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        lengths = [len(call[0]) for call in calls]
        added = padding(lengths) if self.pads else []
        rows = [*lengths, *added]
        starts_B1 = np.cumsum([0, *rows])
        tokens, given = int(starts_B1[-1]), sum(lengths)
        crossing = Crossing(self.device, *(((n,), torch.int32) for n in (tokens, tokens, len(rows) + 1)))
        ids_T, positions_T, starts = crossing.arrays()
        np.concatenate([call[0] for call in calls], out=ids_T[:given], casting="unsafe")
        ids_T[given:] = 0
        np.subtract(
            np.arange(self.first, self.first + tokens),
            starts_B1[:-1].repeat(rows),
            out=positions_T,
            casting="unsafe",
        )
        starts[:] = starts_B1
        longest = max(rows)
        return [crossing, stepped(longest) if added else longest]

    def divide(self, result: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        lengths = [len(call[0]) for call in calls]
        is_one = isinstance(result, Tensor)
        columns = [
            part[: sum(lengths)].split(lengths) if of_tokens else part[: len(calls)].unbind()
            for part, of_tokens in zip([result] if is_one else result, self.of_tokens, strict=True)
        ]
        return list(columns[0]) if is_one else [list(row) for row in zip(*columns)]


class MaskedSequences(Sequences):
    """Ids, a mask of those that are seen by others, and a mask of rows that are kept; each mask may be None.

    A launch gets three tensors behind what Sequences gives it: bool [T] of rows that are kept, int32 [N] of
    the tokens that are seen, in order, and their starts int32 [B+1]; None without masks.
    """

    def read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        found = super().read(args)
        ids, attention_mask, keep = args
        _require_mask("attention_mask", attention_mask, ids)
        _require_mask("keep", keep, ids)
        if attention_mask is not None and not attention_mask.any():
            raise RequestError("attention_mask is 0 everywhere: a token needs one to look at")
        return found

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """Masks lie together on one device."""
        return tuple(None if mask is None else mask.device for mask in args[1:])

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        crossing, longest = super().join(calls)
        (tokens,), _ = crossing.forms[0]
        seen_T, keep_T = (_filled([masks[place] for _, *masks in calls], tokens) for place in (0, 1))
        keys: list[Tensor | None] = [None, None]
        if seen_T is not None:
            before_T1 = nn.functional.pad(seen_T.cumsum(0, dtype=torch.int32), (1, 0))
            starts_B1 = crossing.tensors()[2].to(before_T1.device)
            keys = [seen_T.nonzero().squeeze(1).int(), before_T1[starts_B1]]
        return [crossing, longest, keep_T, *keys]


def _require_mask(name: str, mask: Any, ids: Tensor) -> None:
    if mask is None:
        return
    if isinstance(mask, Tensor):
        require_values(name, mask)
    is_whole = isinstance(mask, Tensor) and not (mask.is_floating_point() or mask.is_complex())
    if not is_whole or mask.shape != ids.shape or mask.device != ids.device:
        raise RequestError(
            f"{name} must be integers or bool [{len(ids)}], one for each token id and beside them, "
            f"not {described(mask)}"
        )


def _filled(masks: list[Tensor | None], tokens: int) -> Tensor | None:
    """bool [T] of a launch, true for its padding."""
    given = [mask.bool() for mask in masks if mask is not None]
    if not given:
        return None
    missing = tokens - sum(map(len, given))
    return torch.cat([*given, torch.ones(missing, dtype=torch.bool, device=given[0].device)])


def padding(lengths: Sequence[int]) -> list[int]:
    """Lengths of rows behind the requests' own, none of them empty; no row where the launch is large."""
    tokens, rows = sum(lengths), len(lengths)
    if tokens > SMALL:
        return []
    added = (1 << rows.bit_length()) - rows  # at least one
    spare = stepped(tokens + added) - tokens
    return [1] * (added - 1) + [spare - added + 1]


def stepped(size: int) -> int:
    """The next size that launches are padded to."""
    step = max(LEAST, 1 << max(0, (size - 1).bit_length() - STEPS.bit_length()))
    return -(-size // step) * step
