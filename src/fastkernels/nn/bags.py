"""Bags of ids as models of recommendation are asked them, and those of several requests as one lookup.

A request has R rows, `dense` [R, X], and for each of F tables a bag of ids for each row: `lengths` [F, R],
and `values` [N], the bags' ids one behind the other, those of a table together. All tables are one, in which
they lie one behind the other: an id becomes the row at which its table begins, plus itself. A launch has the
bags of all its requests, table by table.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.batching import Crossing, described, ids_of, largest_unsigned, require_values, words_of
from fastkernels.nn.program import Place

MOST_ROWS = 1 << 14  # of a request: the activations of a launch of some of them fit beside a model
# Numbers of ids are rounded up to so many leading bits: batches of nearly as many replay one CUDA graph.
LEADING_BITS = 4
# Of so few ids it is faster to repeat where each table begins than to go through the tables.
FEW = 4096


class Bags:
    """Requests of equal numbers of rows: dense [C, R, X] in the model's dtype, rows of the whole table int32
    [M], offsets int32 [F C R + 1]. Behind the last offset the first row fills up to M."""

    def __init__(self, num_embeddings: Sequence[int], num_dense: int, place: Place) -> None:
        self.num_embeddings, self.num_dense = np.array(num_embeddings, dtype=np.uint64), num_dense
        self.starts = np.cumsum([0, *num_embeddings[:-1]])  # of each table in the whole
        self.device, self.dtype = place

    def read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Dense, ids [N], where each bag ends [F R], and where those of each table begin, with their end
        [F + 1]; a RequestError names what is wrong with a request, and where."""
        dense, values, lengths = args
        rows = self._rows(dense)
        self._check_integers("values", values, "[ids]", 1)
        self._check_integers("lengths", lengths, "[tables, rows]", 2)
        tables = len(self.starts)
        if lengths.shape != (tables, rows):
            raise RequestError(
                f"lengths are {list(lengths.shape)}: they must be [{tables}, {rows}], one for each of "
                f"{tables} tables and of the {rows} rows of dense"
            )
        values_N, lengths_FR = ids_of(values), ids_of(lengths)
        # No length above the number of ids: then the sum is far from what an integer holds.
        count = len(values_N)
        if largest_unsigned(lengths_FR) > count or (ends := _sums(lengths_FR))[-1] != count:
            raise _misfit(lengths_FR, count)
        bounds_F1 = np.zeros(tables + 1, dtype=np.int64)
        bounds_F1[1:] = ends[rows - 1 :: rows]
        self._check_ids(values_N, bounds_F1)
        return dense, values_N, ends, bounds_F1

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """The number of rows."""
        return args[0].shape[0]

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        _, ids_N, ends, bounds_F1 = calls[0]
        if len(calls) > 1:
            lengths = [np.diff(call[2], prepend=0).reshape(len(self.starts), -1) for call in calls]
            lengths_FCR = np.stack(lengths, axis=1)
            ids_N = _by_feature([call[1] for call in calls], lengths_FCR.sum(2))
            ends, bounds_F1 = _sums(lengths_FCR), np.sum([call[3] for call in calls], axis=0)
        crossing = Crossing(
            self.device,
            ((len(calls), *calls[0][0].shape), self.dtype),
            ((_rounded_up(len(ids_N)),), torch.int32),
            ((len(ends) + 1,), torch.int32),
        )
        dense_CRX, rows_M, offsets = crossing.arrays()
        for one_RX, call in zip(dense_CRX, calls):
            one_RX[...] = words_of(call[0], self.dtype)
        self._write_rows(ids_N, bounds_F1, rows_M)
        offsets[0], offsets[1:] = 0, ends
        return [crossing]

    def _write_rows(self, ids_N: np.ndarray, bounds_F1: np.ndarray, rows_M: np.ndarray) -> None:
        """Those of the whole table."""
        count = len(ids_N)
        rows_M[count:] = 0
        if count <= FEW:
            starts_N = self.starts.repeat(bounds_F1[1:] - bounds_F1[:-1])
            np.add(ids_N, starts_N, rows_M[:count], casting="unsafe")
            return
        rows_M[:count] = ids_N
        bounds = bounds_F1.tolist()
        for start, begin, end in zip(self.starts.tolist(), bounds, bounds[1:]):
            rows_M[begin:end] += start

    def _rows(self, dense: Any) -> int:
        """A request's."""
        if isinstance(dense, Tensor):
            require_values("dense", dense)
        is_matrix = isinstance(dense, Tensor) and dense.dim() == 2 and dense.is_floating_point()
        if not is_matrix or dense.shape[1] != self.num_dense:
            raise RequestError(
                f"dense must be floating-point [rows, {self.num_dense}], not {described(dense)}"
            )
        if not 1 <= dense.shape[0] <= MOST_ROWS:
            raise RequestError(f"a request of {dense.shape[0]} rows: they are 1 to {MOST_ROWS}. Split it")
        return dense.shape[0]

    def _check_integers(self, name: str, value: Any, form: str, dimensions: int) -> None:
        if isinstance(value, Tensor):
            require_values(name, value)
        is_integer = isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)
        if not is_integer or value.dim() != dimensions:
            raise RequestError(f"{name} must be int64 or int32 {form}, not {described(value)}")

    def _check_ids(self, values_N: np.ndarray, bounds_F1: np.ndarray) -> None:
        """A negative id is a large one without its sign. One pass over the ids, which may be millions."""
        held = (bounds_F1[1:] > bounds_F1[:-1]).nonzero()[0]
        if not len(held):
            return
        largest = np.maximum.reduceat(values_N.view(np.uint64), bounds_F1[held])
        is_wrong = largest >= self.num_embeddings[held]
        if is_wrong.any():
            table = int(held[is_wrong.argmax()])
            begin, end = bounds_F1[table : table + 2].tolist()
            ids, rows = values_N[begin:end], int(self.num_embeddings[table])
            place = int(np.flatnonzero((ids < 0) | (ids >= rows))[0])
            raise RequestError(
                f"values[{begin + place}] is {ids[place]}: table {table} has rows 0 to {rows - 1}"
            )


def _sums(lengths: np.ndarray) -> np.ndarray:
    """Of each length and those before it: of int64 torch has them five times as fast as NumPy."""
    return torch.from_numpy(lengths.ravel()).cumsum(0).numpy()


def _misfit(lengths_FR: np.ndarray, ids: int) -> RequestError:
    """What is wrong with lengths that do not fit so many ids."""
    if lengths_FR.min() < 0:
        table, row = (int(place[0]) for place in np.nonzero(lengths_FR < 0))
        return RequestError(f"lengths[{table}, {row}] is {lengths_FR[table, row]}: a bag has 0 ids or more")
    total = sum(lengths_FR.ravel().tolist())
    return RequestError(f"lengths add up to {total}, but values has {ids} ids")


def _by_feature(values: list[np.ndarray], counts_FC: np.ndarray) -> np.ndarray:
    """[N]: the requests' ids, those of a table together, requests in order."""
    counts = counts_FC.ravel()
    # Where the ids of (table, request) begin in the requests one behind the other, and here.
    there_FC = (np.cumsum(counts_FC.T.ravel()) - counts_FC.T.ravel()).reshape(counts_FC.shape[::-1]).T
    here = np.cumsum(counts) - counts
    index_N = np.repeat(there_FC.ravel() - here, counts) + np.arange(counts.sum())
    return np.concatenate(values)[index_N]


def _rounded_up(count: int) -> int:
    """The least number that is at least `count`, and at least 1, with so many leading bits."""
    step = 1 << max(0, count.bit_length() - LEADING_BITS)
    return max(1, -(-count // step) * step)
