"""Token ids of requests of any length as one launch, and each request's rows of the result.

A small launch on a GPU is bound by the host, unless it is a graph that was captured before. So it is padded
with rows that nobody asked for, to few different numbers of tokens, rows and longest row; a large one is not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.errors import RequestError
from fastkernels.nn.batching import described, require_values, sent

# A launch of so many tokens keeps a GPU busy for longer than its kernels take to be launched (estimated).
SMALL = 4096
STEPS = 8  # padded sizes between two powers of two: at most an eighth is padding
LEAST = 16
ALIGNED = 4  # int32 of 16 bytes, at which kernels read whole vectors


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
        self.of_tokens, self.pads = of_tokens, device.type == "cuda"
        self._places = torch.arange(first, first + max_length, dtype=torch.int32)

    def key(self, args: tuple[Any, ...]) -> Hashable:
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
        low, high = map(int, ids.aminmax())  # of ids on a GPU the host waits here
        if low < 0 or high >= self.vocab_size:
            raise RequestError(
                f"token id {low if low < 0 else high}: the model's vocabulary is 0 .. {self.vocab_size - 1}. "
                "Use the tokenizer of its checkpoint"
            )
        return ids.device

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        parts, longest = self._packed(calls)
        return [*sent_as_one(parts, self.device), longest]

    def _packed(self, calls: Sequence[tuple[Any, ...]]) -> tuple[list[list[Tensor]], int]:
        """The parts of what a launch gets, one behind the other, and its longest row."""
        lengths = [ids.numel() for ids, *_ in calls]
        added = padding(lengths) if self.pads else []
        filler_T = torch.zeros(sum(added), dtype=torch.int32)
        positions = [self._places[:length] for length in lengths]
        starts_B1 = torch.tensor([0, *accumulate([*lengths, *added])], dtype=torch.int32)
        longest = max(*lengths, *added, 0)
        parts = [
            [*(ids for ids, *_ in calls), filler_T.to(calls[0][0].device)],
            [*positions, filler_T + self._places[0]],
            [starts_B1],
        ]
        return parts, stepped(longest) if added else longest

    def divide(self, result: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        lengths = [ids.numel() for ids, *_ in calls]
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

    def key(self, args: tuple[Any, ...]) -> Hashable:
        ids, attention_mask, keep = args
        device = super().key(args)
        _require_mask("attention_mask", attention_mask, ids)
        _require_mask("keep", keep, ids)
        if attention_mask is not None and not attention_mask.any():
            raise RequestError("attention_mask is 0 everywhere: a token needs one to look at")
        return device, attention_mask is None, keep is None

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        parts, longest = self._packed(calls)
        tokens = sum(part.numel() for part in parts[0])
        seen_T, keep_T = (_filled([masks[place] for _, *masks in calls], tokens) for place in (0, 1))
        if seen_T is not None:
            before_T1 = nn.functional.pad(seen_T.cumsum(0, dtype=torch.int32), (1, 0))
            starts_B1 = parts[2][0].long().to(before_T1.device)
            parts += [[seen_T.nonzero().squeeze(1)], [before_T1[starts_B1]]]
        ids_T, positions_T, starts_B1, *keys = sent_as_one(parts, self.device)
        keep_T = None if keep_T is None else sent(keep_T, self.device)
        return [ids_T, positions_T, starts_B1, longest, keep_T, *(keys or (None, None))]


def sent_as_one(parts: Sequence[Sequence[Tensor]], device: torch.device) -> list[Tensor]:
    """int32 tensors on the device, each of parts that lie one behind the other. What lies on the host crosses
    in one copy."""
    if device.type != "cuda" or any(part.is_cuda for some in parts for part in some):
        return [sent(torch.cat([part.int() for part in some]), device) for some in parts]
    sizes = [sum(part.numel() for part in some) for some in parts]
    begins = [0, *accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
    pinned = torch.empty(begins[-1], dtype=torch.int32, pin_memory=True)
    for some, begin, size in zip(parts, begins, sizes):
        torch.cat(list(some), out=pinned[begin : begin + size])
    there = pinned.to(device, non_blocking=True)
    return [there[begin : begin + size] for begin, size in zip(begins, sizes)]


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
