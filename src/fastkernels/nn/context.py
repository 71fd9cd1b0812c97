"""The ambient step: batch and cache metadata that modules read without carrying it in their signatures.

    T tokens of the step · B rows (requests) · N blocks of the longest row · G cache groups · A requests that
    begin

Rows are ordered: the first `num_decodes` rows have exactly one query token and a non-empty cache; prefill
rows follow. The engine fills the step; in tier 1 a case's context does. Position of a row's query i: seq_len
- query_len + i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels import plans


@dataclass(slots=True)
class Step:
    """Tensors lie on the model's device; integers are known to the host (upper bounds where a graph is
    replayed).
    """

    query_starts_B1: Tensor  # int32 [B+1], first query token of each row; last entry T
    seq_lens_B: Tensor  # int32 [B], tokens in the row's cache once this step is stored
    rows_B: Tensor  # int64 [B], where the requests' states lie; distinct, but for the null row 0 = padding
    block_tables_GBN: list[Tensor]  # for each group int32 [B, N]; block 0 is the null block
    slots_GT: list[Tensor]  # for each group int64 [T]: block * block_size + offset; null block = padding
    num_decodes: int  # rows 0..num_decodes-1 are decode rows
    max_query_len: int  # longest query among prefill rows (0 without prefill rows)
    max_seq_len: int  # longest seq_len
    begun_A: Tensor | None = (
        None  # int64 [A], rows_B of those with a source that begin in this step; None: none
    )
    known: Sequence[tuple[Tensor, Tensor]] = ()  # of the tensors above, with their values on the host


_current: Step | None = None


def step() -> Step:
    """The step in flight; a RuntimeError outside `use_step`."""
    if _current is None:
        raise RuntimeError("No step in flight: call the module inside `with use_step(...)`")
    return _current


@contextmanager
def use_step(new: Step | None) -> Iterator[None]:
    """Make `new` the ambient step for the body: one forward, so attention plans made in it serve all its
    layers.
    """
    global _current
    previous, _current = _current, new
    try:
        with plans.plan_scope(known=() if new is None else new.known):
            yield
    finally:
        _current = previous


def in_a_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, each call of which is a forward without a step: attention plans made for one layer serve
    all."""

    def compute(*args: Any) -> Any:
        with use_step(None):
            return function(*args)

    return compute


def prefill_starts(query_starts_B1: Tensor, num_decodes: int) -> Tensor:
    """Where the queries of prefill rows start, counted from the first of them: a decode row is one token.

    One tensor for all layers of a forward, because attention libraries plan their work by the tensors that
    they get.
    """

    def from_prefills(starts_B1: Tensor) -> Tensor:
        return starts_B1[num_decodes:] - num_decodes

    def make() -> Tensor:
        made = from_prefills(query_starts_B1)
        plans.know(made, query_starts_B1, from_prefills)
        return made

    if torch.compiler.is_compiling():
        return from_prefills(query_starts_B1)
    return plans.planned_on_device("context.prefill_starts", (query_starts_B1,), num_decodes, make)


def by_phase(
    update: Callable[..., Tensor],
    chunk: Callable[..., Tensor],
    tokens: Sequence[Tensor],
    others: Sequence[Any],
) -> Tensor:
    """What layers that keep a state do with the tokens of a step [T, ...]: decode rows take `update(*tokens,
    *others, rows)`, prefill rows `chunk(*tokens, *others, rows, query_starts, max_query_len)`.

    others: what has no row for each token, states among them. A step with one kind of rows makes no copy.
    """
    now = step()
    n, rows_B, starts_B1 = now.num_decodes, now.rows_B, now.query_starts_B1
    if now.max_query_len == 0:
        return update(*tokens, *others, rows_B)
    if n == 0:
        return chunk(*tokens, *others, rows_B, starts_B1, now.max_query_len)
    decoded = update(*(x[:n] for x in tokens), *others, rows_B[:n])
    behind = (rows_B[n:], prefill_starts(starts_B1, n), now.max_query_len)
    return torch.cat((decoded, chunk(*(x[n:] for x in tokens), *others, *behind)))


def state_slots(begun_A: Tensor, num_entries: int) -> Tensor:
    """Where the entries of requests lie in pools [rows, num_entries, ...] seen as one list: int64
    [A * num_entries]. One tensor for all layers of a forward."""

    def make() -> Tensor:
        entries = torch.arange(num_entries, device=begun_A.device)
        return (begun_A[:, None] * num_entries + entries).flatten()

    if torch.compiler.is_compiling():
        return make()
    return plans.planned_on_device("context.state_slots", (begun_A,), num_entries, make)
