"""A step as the scheduler plans it and as the device executes it: arrays, never one object for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastkernels.engine.core.cache import Ints, TableDiff
from fastkernels.engine.core.request import Logprob, Logprobs, Request


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that takes a row in this step: its known ids go to positions 0.. of the row's token table."""

    row: int
    request: Request
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Scored:
    """P prompt tokens whose log-probabilities are wanted: ids_P[p] is judged by the hidden state of the
    step's token places_P[p]. spans: of each request in turn the position of its first one, and how many."""

    spans: list[tuple[Request, int, int]]
    places_P: Ints
    ids_P: Ints

    @property
    def most(self) -> int:
        """Best tokens that a request asks for."""
        return max(request.sampling.prompt_logprobs or 0 for request, _, _ in self.spans)


@dataclass(frozen=True, slots=True)
class Spliced:
    """Of a step in which places up to the end of some media are computed: the positions of all T tokens on
    three axes, and which of the rows, laid one behind another, stands for a token; -1: its id does."""

    positions_3T: Ints
    index_T: Ints
    rows: list[Tensor]


@dataclass(frozen=True, slots=True)
class Plan:
    """B rows of one step, decode rows (one query, non-empty cache) first. Nothing here aliases the
    scheduler's state.

    Row b computes positions starts_B[b] .. +counts_B[b]-1; where samples_B[b], the id of the next position is
    sampled and written behind them on the device.
    """

    rows_B: Ints
    starts_B: Ints
    counts_B: Ints
    samples_B: NDArray[np.bool_]
    serials_B: Ints
    num_decodes: int
    tables: list[TableDiff]
    admitted: list[Admission]
    scored: Scored | None = None
    spliced: Spliced | None = None

    @property
    def is_decode(self) -> bool:
        """Whether every row decodes and samples, so that a captured graph can serve the step."""
        is_alike = self.num_decodes == len(self.rows_B) and bool(self.samples_B.all())
        return is_alike and not self.admitted and self.spliced is None


class Ranked(NamedTuple):
    """On the host: of S given ids the log-probabilities and ranks, and the K best tokens beside each."""

    logprobs_S: NDArray[np.float32]
    ranks_S: Ints
    best_ids_SK: Ints
    best_logprobs_SK: NDArray[np.float32]

    def at(self, index: int, token: int, count: int) -> Logprobs:
        """The `count` best tokens beside this one, best first, and `token`, which was given."""
        best = zip(self.best_ids_SK[index, :count].tolist(), self.best_logprobs_SK[index, :count].tolist())
        found = {i: Logprob(value, rank) for rank, (i, value) in enumerate(best, 1)}
        found.setdefault(token, Logprob(float(self.logprobs_S[index]), int(self.ranks_S[index])))
        return found


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step sampled, on the host, in the order of the plan's sampling rows (S). ranked: where a row of
    the step asked for log-probabilities. scored: of the prompt tokens in the plan's `scored`."""

    ids_S: Ints
    ranked: Ranked | None = None
    scored: Ranked | None = None
