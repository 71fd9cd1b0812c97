"""What the kernel calls of a module must move and multiply at least, counted on meta tensors.

    Kernel("embedding", ..., work=lambda tally, ids_T, weight_VD: tally.look_up(weight_VD, ids_T.numel()))

A kernel says in `work` what its arguments do not show: products, and how much of a table, a stack of experts
or a pool a call touches. All other arguments are read whole: measure/roofline.py adds them up, and turns work
into time.

    products        2 M N K of matrices (M slots of one by experts) and convolutions (M places, K elements of
                    a filter), 4 H K of each visible (query, key) pair of attention, 4 H K V of each token of
                    linear attention, 6 H K V of the delta rule; a scan's are no products
    tables          as many rows as there are ids; of a stack of experts, those that have a token
    paged caches    read: the entries that the queries see, window counted, less those that the same call
                    stores; written: the entries of the step's tokens
    states          read: but of requests that begin; written: of all requests

H query heads · K head size · V value size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor

from fastkernels.kernels.base import registered

Rows = Sequence[tuple[int, int]]  # (query length, sequence length) of requests


@dataclass
class Tally:
    """Observes kernel calls (base.observe). `batch`: requests of the step, decodes first. `reached(slots)`:
    experts that have a token."""

    batch: Rows | None
    reached: Callable[[int], int] | None = None
    flops: dict[str, int] = field(default_factory=dict)  # by dtype name
    received: int = 0  # bytes from other ranks
    pool_read: int = 0
    pool_written: int = 0
    rows_read: dict[int, int] = field(default_factory=dict)  # id(table) -> rows, id(stack) -> experts
    read_whole: set[int] = field(default_factory=set)
    arguments: list[Tensor] = field(default_factory=list)
    _stored: set[int] = field(default_factory=set)  # id(pool) that this module has written
    _looked_up: set[int] = field(default_factory=set)  # id(table) of the current call

    def __call__(self, kernel: str, args: Sequence[Any]) -> None:
        self._looked_up = set()
        if (work := registered[kernel].work) is not None:
            work(self, *args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        self.arguments += tensors
        self.read_whole |= {id(tensor) for tensor in tensors} - self._looked_up

    def multiply(self, x: Tensor, flops: int) -> None:
        """Operations of products, in the dtype of x."""
        dtype = str(x.dtype).removeprefix("torch.")
        self.flops[dtype] = self.flops.get(dtype, 0) + flops

    def look_up(self, table: Tensor, rows: int) -> None:
        """So many rows of the table are read."""
        self._looked_up.add(id(table))
        self.rows_read[id(table)] = min(self.rows_read.get(id(table), 0) + rows, table.shape[0])

    def look_up_experts(self, stack: Tensor, slots: int) -> None:
        """The experts that have one of the slots are read."""
        assert self.reached is not None, "a product by experts needs to know how tokens choose them"
        self.look_up(stack, self.reached(slots))

    def store(self, pools: Sequence[Tensor], tokens: Sequence[Tensor]) -> None:
        """The tokens are written to the pools."""
        self.pool_written += sum(size(each) for each in tokens)
        self._stored |= {id(pool) for pool in pools}

    def attend(
        self,
        q: Tensor,
        caches: Sequence[Tensor],
        requests: Rows,
        window: int,
        value_size: int | None = None,
    ) -> None:
        """Causal attention of each request's last tokens to paged caches [N, P, ...]. value_size: of a value,
        where it is not that of a key."""
        pairs = sum(visible_pairs(query, seq, window) for query, seq in requests)
        self.multiply(q, 2 * (q.shape[-1] + (value_size or q.shape[-1])) * q.shape[-2] * pairs)
        for cache in caches:
            fresh = id(cache) in self._stored  # this call's own tokens need not come from memory
            entries = sum(visible_keys(query, seq, window) - query * fresh for query, seq in requests)
            self.pool_read += max(0, entries) * prod(cache.shape[2:]) * cache.element_size()

    def read_kept(self, pool: Tensor, rows: int) -> None:
        """Rows of a pool that keeps all keys of a request; of one that begins they may be this call's own."""
        fresh = sum(query == seq for query, seq in self.requests()) if id(pool) in self._stored else 0
        self.pool_read += (rows - fresh) * size(pool[0])

    def advance(self, state: Tensor, requests: Rows) -> None:
        """States [R, ...]; a request that begins has none to read."""
        self.pool_read += size(state[0]) * sum(query < seq for query, seq in requests)
        self.pool_written += size(state[0]) * len(requests)

    def requests(self) -> Rows:
        assert self.batch is not None, "attention needs a batch"
        return self.batch

    def decodes(self, rows: Tensor) -> Rows:
        """The first requests, as many as `rows`."""
        return self.requests()[: len(rows)]

    def prefills(self, rows: Tensor) -> Rows:
        """The last requests, as many as `rows`."""
        return self.requests()[len(self.requests()) - len(rows) :]


def visible_pairs(query_len: int, seq_len: int, window: int) -> int:
    """(query, key) pairs of a causal row: query i sits at p = seq - query + i and sees min(p + 1, window)
    keys."""
    first = seq_len - query_len + 1  # keys that the first query sees without a window
    if not window:
        return query_len * first + query_len * (query_len - 1) // 2
    growing = max(0, min(query_len, window - first))
    return (
        growing * first + growing * (growing - 1) // 2 + (query_len - growing) * min(window, first + growing)
    )


def visible_keys(query_len: int, seq_len: int, window: int) -> int:
    """Keys that at least one query of the row sees."""
    return seq_len if not window else min(seq_len, window + query_len - 1)


def size(x: Tensor) -> int:
    """Bytes."""
    return x.numel() * x.element_size()
