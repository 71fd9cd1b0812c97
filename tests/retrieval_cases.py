"""Calls of the kernels of retrieval with their answers in float64.

T tokens · D width · L tokens of a query · S rows of documents · K vector size
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.pointwise_cases import Arguments, KernelCase, randn

MASKED = -9999.0  # what a row that does not count is worth


def l2_norm_cases() -> list[KernelCase]:
    def answer(x: Tensor, keep: Tensor | None, eps: float) -> tuple[Tensor, ...]:
        kept = x.double() if keep is None else torch.where(keep[..., None], x.double(), 0.0)
        return (kept / torch.linalg.vector_norm(kept, dim=-1, keepdim=True).clamp(min=eps),)

    def rows(t: int, d: int, scale: float = 1.0) -> KernelCase:
        def make(dt: torch.dtype) -> Arguments:
            return randn(t, d, dtype=dt, scale=scale), None, 1e-12

        return KernelCase("l2_norm", f"T{t}-D{d}-{scale:g}", make, answer)

    def masked(dt: torch.dtype) -> Arguments:
        """Among the rows that are not kept one whose values are not finite; among the kept ones zeros."""
        x, keep = randn(6, 40, dtype=dt), torch.tensor([True, False, True, False, True, True])
        x[1], x[2] = torch.inf, 0.0
        return x, keep, 1e-12

    def heads(dt: torch.dtype) -> Arguments:
        packed = randn(5, 3 * 64, dtype=dt)
        return packed[:, 64:128].view(5, 4, 16), torch.arange(20).view(5, 4) % 3 > 0, 1e-12

    return [
        *(rows(t, d) for t, d in ((1, 64), (40, 160), (3, 7), (2, 1500), (3, 1), (0, 8))),
        rows(3, 64, 1e3),  # the squares overflow float16
        KernelCase("l2_norm", "masked", masked, answer),
        KernelCase("l2_norm", "packed-heads", heads, answer),
        # The epsilon is what short rows are divided by.
        KernelCase("l2_norm", "short", lambda dt: (randn(3, 16, dtype=dt, scale=0.1), None, 2.0), answer),
    ]


def summed_embedding_cases() -> list[KernelCase]:
    def answer(ids, positions, words, places, shared, weight, bias, eps) -> tuple[Tensor, ...]:
        if not len(ids):
            return (words[:0].double(),)
        x = words.double()[ids] + places.double()[positions] + shared.double()
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return ((x - mean) / torch.sqrt(variance + eps) * weight.double() + bias.double(),)

    def case(t: int, d: int, integers: torch.dtype = torch.int64, eps: float = 1e-5) -> KernelCase:
        def make(dt: torch.dtype) -> Arguments:
            generator = torch.Generator().manual_seed(t)
            ids, positions = (torch.randint(n, (t,), generator=generator, dtype=integers) for n in (11, 7))
            tables = (randn(11, d, dtype=dt), randn(7, d, dtype=dt, seed=1), randn(d, dtype=dt, seed=2))
            return ids, positions, *tables, randn(d, dtype=dt, seed=3) + 1, randn(d, dtype=dt, seed=4), eps

        return KernelCase("summed_embedding", f"T{t}-D{d}-{eps:g}", make, answer)

    return [case(1, 64), case(40, 160, torch.int32), case(3, 7, eps=1.0), case(2, 1500), case(0, 8)]


def late_interaction_cases() -> list[KernelCase]:
    """Documents of one length and of several, among them an empty one; rows that do not count, one of which
    would be the best; similarities that all are negative."""

    def answer(query, docs, starts, keep, length) -> tuple[Tensor, ...]:
        similar = docs.double() @ query.double().T
        if keep is not None:
            similar[~keep] = MASKED
        ends = torch.arange(0, len(docs) + 1, length) if starts is None else starts
        scores = [
            torch.cat([similar[a:b], torch.full((1, len(query)), MASKED, dtype=torch.float64)]).amax(0).sum()
            for a, b in zip(ends[:-1].tolist(), ends[1:].tolist())
        ]
        return (torch.stack(scores) if scores else torch.empty(0, dtype=torch.float64),)

    def case(name, tokens, lengths, dim, keep: bool, offset: float = 0.0) -> KernelCase:
        def make(dt: torch.dtype) -> Arguments:
            rows = sum(lengths)
            query, docs = randn(tokens, dim, dtype=dt), randn(rows, dim, dtype=dt, seed=1)
            if offset:  # all of a query and a document point away from each other
                query, docs = query.abs() + offset, -docs.abs() - offset
            kept = (torch.arange(rows) % 5 > 0) if keep else None
            if len(set(lengths)) == 1:
                return query, docs, None, kept, lengths[0]
            starts = torch.tensor([0, *lengths]).cumsum(0).int()
            return query, docs, starts, kept, 0

        return KernelCase("late_interaction", name, make, answer, widens=True)

    return [
        case("padded", 32, [37] * 3, 128, keep=True),
        case("padded-all", 9, [4] * 5, 16, keep=False),
        case("packed", 32, [5, 0, 170, 1, 33], 128, keep=False),
        case("packed-masked", 70, [80, 3, 64], 40, keep=True),
        case("wide", 5, [9, 70], 300, keep=False),
        case("negative", 8, [6] * 2, 24, keep=True, offset=0.5),
    ]


def sum_layer_norm_cases() -> list[KernelCase]:
    """A residual that is larger than what is added: the sum need not be rounded."""

    def answer(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        total = x.double() + residual.double()
        variance, mean = torch.var_mean(total, dim=-1, correction=0, keepdim=True)
        return ((total - mean) / torch.sqrt(variance + eps) * weight.double() + bias.double(),)

    def case(t: int, d: int, eps: float = 1e-12) -> KernelCase:
        def make(dt: torch.dtype) -> Arguments:
            # The residual is a part of wider rows.
            x, residual = randn(t, d, dtype=dt), randn(t, d + 8, dtype=dt, seed=3, scale=4.0)[:, 8:]
            return x, residual, randn(d, dtype=dt, seed=1) + 1, randn(d, dtype=dt, seed=2), eps

        return KernelCase("sum_layer_norm", f"T{t}-D{d}-{eps:g}", make, answer)

    return [case(1, 64), case(40, 160), case(3, 7, eps=1.0), case(2, 1500)]


def all_cases() -> list[KernelCase]:
    return [*l2_norm_cases(), *sum_layer_norm_cases(), *summed_embedding_cases(), *late_interaction_cases()]
