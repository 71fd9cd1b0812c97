"""Token ids of requests of any length as one launch, and each request's rows of the result.

A small launch on a GPU is bound by the host, unless it is a graph that was captured before. So it is padded
with rows that nobody asked for, to few different numbers of tokens, rows and longest row; a large one is not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

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
        lengths = [len(ids) for ids, *_ in calls]
        added = padding(lengths) if self.pads else []
        ids_T = torch.cat([ids.long() for ids, *_ in calls])
        filler_T = torch.zeros(sum(added), dtype=torch.int64)
        positions_T = torch.cat([*(self._places[:length] for length in lengths), filler_T + self._places[0]])
        starts_B1 = torch.tensor([0, *accumulate([*lengths, *added])], dtype=torch.int32)
        ids_T = torch.cat([ids_T, filler_T.to(ids_T.device)])
        longest = max(*lengths, *added, 0)
        longest = stepped(longest) if added else longest
        return [*(sent(part, self.device) for part in (ids_T, positions_T, starts_B1)), longest]

    def divide(self, result: Any, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        lengths = [len(ids) for ids, *_ in calls]
        is_one = isinstance(result, Tensor)
        columns = [
            part[: sum(lengths)].split(lengths) if of_tokens else part[: len(calls)].unbind()
            for part, of_tokens in zip([result] if is_one else result, self.of_tokens, strict=True)
        ]
        return list(columns[0]) if is_one else [list(row) for row in zip(*columns)]


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
