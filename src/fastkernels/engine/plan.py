"""A step as the scheduler plans it and as the device executes it: arrays, never one object for each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastkernels.engine.cache import Ints, TableDiff
from fastkernels.engine.requests import Request


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that takes a row in this step: its known ids go to positions 0.. of the row's token table."""

    row: int
    request: Request
    tokens: list[int]


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

    @property
    def is_decode(self) -> bool:
        """Whether every row decodes and samples, so that a captured graph can serve the step."""
        return self.num_decodes == len(self.rows_B) and not self.admitted and bool(self.samples_B.all())


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step sampled, on the host, in the order of the plan's sampling rows (S).

    top_ids_SK, top_logprobs_SK: the K best tokens of each row, best first, where a row of the step asked for
    them.
    """

    ids_S: Ints
    top_ids_SK: Ints | None = None
    top_logprobs_SK: NDArray[np.float32] | None = None
    logprobs_S: NDArray[np.float32] | None = None  # of the sampled ids
