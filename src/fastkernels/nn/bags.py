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
from fastkernels.nn.batching import Crossing, described, ids_of, require_values, words_of
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

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """The number of rows; a RequestError names what is wrong with a request, and where."""
        dense, values, lengths = args
        rows = self._rows(dense)
        self._check_integers("values", values, "[ids]", 1)
        self._check_integers("lengths", lengths, "[tables, rows]", 2)
        tables = len(self.starts)
        if tuple(lengths.shape) != (tables, rows):
            raise RequestError(
                f"lengths are {list(lengths.shape)}: they must be [{tables}, {rows}], one for each of "
                f"{tables} tables and of the {rows} rows of dense"
            )
        lengths_FR, values_N = ids_of(lengths), ids_of(values)
        if lengths_FR.min() < 0:
            table, row = (int(place[0]) for place in np.nonzero(lengths_FR < 0))
            raise RequestError(
                f"lengths[{table}, {row}] is {lengths_FR[table, row]}: a bag has 0 ids or more"
            )
        counts_F = lengths_FR.sum(1)
        if (total := int(counts_F.sum())) != len(values_N):
            raise RequestError(f"lengths add up to {total}, but values has {len(values_N)} ids")
        self._check_ids(values_N, counts_F)
        return rows

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        lengths, values = ([ids_of(call[place]) for call in calls] for place in (2, 1))
        if len(calls) == 1:
            lengths_N, ids_N = lengths[0].ravel(), values[0]
        else:
            lengths_FCR = np.stack(lengths, axis=1)
            lengths_N, ids_N = lengths_FCR.ravel(), _by_feature(values, lengths_FCR.sum(2))
        dense_form = (len(calls), *calls[0][0].shape)
        rows_form = (_rounded_up(len(ids_N)),)
        crossing = Crossing(
            self.device,
            *((dense_form, self.dtype), (rows_form, torch.int32), ((len(lengths_N) + 1,), torch.int32)),
        )
        dense_CRX, rows_M, offsets = crossing.arrays()
        for one_RX, (dense, _, _) in zip(dense_CRX, calls):
            one_RX[...] = words_of(dense, self.dtype)
        offsets[0] = 0
        # Of int64 torch's sum is five times as fast as NumPy's.
        offsets[1:] = torch.from_numpy(lengths_N).cumsum(0).numpy()
        self._write_rows(ids_N, offsets[:: len(lengths_N) // len(self.starts)], rows_M)
        return [crossing]

    def _write_rows(self, ids_N: np.ndarray, ends_F1: np.ndarray, rows_M: np.ndarray) -> None:
        """Those of the whole table; ends_F1: where each table's ids begin, and the last ones end."""
        count = len(ids_N)
        rows_M[count:] = 0
        if count <= FEW:
            np.add(ids_N, self.starts.repeat(ends_F1[1:] - ends_F1[:-1]), rows_M[:count], casting="unsafe")
            return
        rows_M[:count] = ids_N
        ends = ends_F1.tolist()
        for start, begin, end in zip(self.starts.tolist(), ends, ends[1:]):
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

    def _check_ids(self, values_N: np.ndarray, counts_F: np.ndarray) -> None:
        """A negative id is a large one without its sign. One pass over the ids, which may be millions."""
        held = counts_F.nonzero()[0]
        if not len(held):
            return
        begins = counts_F.cumsum() - counts_F
        largest = np.maximum.reduceat(values_N.view(np.uint64), begins[held])
        is_wrong = largest >= self.num_embeddings[held]
        if is_wrong.any():
            table = int(held[is_wrong.argmax()])
            ids = values_N[begins[table] : begins[table] + counts_F[table]]
            rows = int(self.num_embeddings[table])
            place = int(np.flatnonzero((ids < 0) | (ids >= rows))[0])
            at = f"values[{int(begins[table]) + place}]"
            raise RequestError(f"{at} is {ids[place]}: table {table} has rows 0 to {rows - 1}")


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
