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


class Sequences:
    """Ids [n], int64 or int32, each below `vocab_size`, up to `max_length` of them.

    A launch gets ids and positions int64 [T], starts int32 [B+1] of the requests' rows, and the longest
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
        self._places = torch.arange(first, first + max_length)

    def key(self, args: tuple[Any, ...]) -> Hashable:
        ids = args[0]
        if isinstance(ids, Tensor):
            require_values("token ids", ids)
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
            raise RequestError(
                f"token ids must be an int64 or int32 tensor or array [tokens], not {described(ids)}"
            )
        if not len(ids):
            raise RequestError("a request without token ids: give at least one")
        if len(ids) > self.max_length:
            raise RequestError(
                f"{len(ids)} token ids: the model takes up to {self.max_length}. Cut the text into parts"
            )
        low, high = ids.aminmax()  # of ids on a GPU the host waits here
        if low < 0 or high >= self.vocab_size:
            wrong = int(low if low < 0 else high)
            raise RequestError(
                f"token id {wrong}: the model's vocabulary is 0 .. {self.vocab_size - 1}. "
                "Use the tokenizer of its checkpoint"
            )
        return ids.device

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        *tensors, longest = self._packed(calls)
        return [*(sent(each, self.device) for each in tensors), longest]

    def _packed(self, calls: Sequence[tuple[Any, ...]]) -> tuple[Tensor, Tensor, Tensor, int]:
        """What a launch gets, where the callers' ids lie."""
        lengths = [len(ids) for ids, *_ in calls]
        added = padding(lengths) if self.pads else []
        filler_T = torch.zeros(sum(added), dtype=torch.int64)
        ids_T = torch.cat([*(ids.long() for ids, *_ in calls), filler_T.to(calls[0][0].device)])
        positions_T = torch.cat([*(self._places[:length] for length in lengths), filler_T + self._places[0]])
        starts_B1 = torch.tensor([0, *accumulate([*lengths, *added])], dtype=torch.int32)
        longest = max(*lengths, *added, 0)
        return ids_T, positions_T, starts_B1, stepped(longest) if added else longest

    def divide(self, result: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        lengths = [len(ids) for ids, *_ in calls]
        is_one = isinstance(result, Tensor)
        columns = [
            part[: sum(lengths)].split(lengths) if of_tokens else part[: len(calls)].unbind()
            for part, of_tokens in zip([result] if is_one else result, self.of_tokens, strict=True)
        ]
        return list(columns[0]) if is_one else [list(row) for row in zip(*columns)]


class MaskedSequences(Sequences):
    """Ids, a mask of those that are seen by others, and a mask of rows that are kept; each mask may be None.

    A launch gets two more tensors behind what Sequences gives it, and a third: bool [T] of rows that are
    kept, int64 [N] of the tokens that are seen, in order, and their starts int32 [B+1]; None without masks.
    """

    def key(self, args: tuple[Any, ...]) -> Hashable:
        ids, *masks = args
        device = super().key(args)
        for name, mask in zip(("attention_mask", "keep"), masks, strict=True):
            _require_mask(name, mask, ids)
        if masks[0] is not None and not masks[0].any():
            raise RequestError("attention_mask is 0 everywhere: a token needs one to look at")
        return device, *(mask is None for mask in masks)

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        ids_T, positions_T, starts_B1, longest = self._packed(calls)
        seen_T, keep_T = (_filled([masks[place] for _, *masks in calls], ids_T) for place in (0, 1))
        attended_N = key_starts_B1 = None
        if seen_T is not None:
            attended_N = seen_T.nonzero().squeeze(1)
            before_T1 = nn.functional.pad(seen_T.cumsum(0, dtype=torch.int32), (1, 0))
            key_starts_B1 = before_T1[starts_B1.long().to(before_T1.device)]
        first = [sent(each, self.device) for each in (ids_T, positions_T, starts_B1)]
        masks = (keep_T, attended_N, key_starts_B1)
        return [*first, longest, *(None if each is None else sent(each, self.device) for each in masks)]


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


def _filled(masks: list[Tensor | None], ids_T: Tensor) -> Tensor | None:
    """bool [T] of a launch, true for its padding."""
    given = [mask.bool() for mask in masks if mask is not None]
    if not given:
        return None
    missing = len(ids_T) - sum(map(len, given))
    return torch.cat([*given, torch.ones(missing, dtype=torch.bool, device=ids_T.device)])


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
