"""How the outputs of a task are judged: `values`, `exact` or `sampler` (registry/tasks names the rule).

    values    compare.py's error-ratio gate against the float64 oracle
    exact     every element equal to the oracle's
    sampler   ids are judged against the distribution they are drawn from (sampler.py)

Also the rules about repetition: the same call twice, and a result that must not change under later calls; and
about ranks, whose results are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fastkernels.judge import compare, place
from fastkernels.judge.compare import Comparison
from fastkernels.judge.distance import Errors, errors
from fastkernels.judge.verdict import Verdict
from fastkernels.records import Place


def exact(candidate: Mapping[str, Tensor], oracle: Mapping[str, Tensor]) -> Comparison:
    """Equal in every element.

    Floats are compared after rounding the oracle to the candidate's dtype: for copies (a KV store, a gather).
    """
    for name, truth in oracle.items():
        ours = candidate[name]
        expected = truth.to(device=ours.device, dtype=ours.dtype)
        wrong = _different(ours, expected)
        if wrong is not None:
            message = f"{name}: {int(wrong.sum())} of {ours.numel()} elements differ"
            return Comparison.of(Verdict.wrong("value", message, place.first(name, wrong, ours, expected)))
    return Comparison.of(Verdict.passed())


def repeatable(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], allowed: Mapping[str, Errors]
) -> Verdict | None:
    """WRONG(unstable_result) unless two calls on the same inputs agree as closely as two right results must.

    Both lie within A of the oracle, so within 2 A / (1 - A) of each other. Integers must be equal: the
    randomness of a sampler comes from its seeds.
    """
    for name, one in first.items():
        two = second[name]
        if torch.equal(one, two):
            continue
        if not one.is_floating_point():
            return _unstable(f"{name}: two calls on the same inputs return other integers")
        if compare.strays(two, one) is not None:
            return _unstable(f"{name}: two calls on the same inputs are finite in other places")
        found, bound = errors(two, one), allowed[name]
        whole, row = (2 * a / (1 - a) for a in bound[:2])
        if found.whole > whole or found.row > row:
            return _unstable(
                f"{name}: two calls on the same inputs differ by {found.whole:.3g} "
                f"(worst row {found.row:.3g})"
            )
    return None


def untouched(at_return: Mapping[str, Tensor], later: Mapping[str, Tensor]) -> Verdict | None:
    """WRONG(unstable_result) if outputs of a call, copied when it returned, have changed by the end of a
    later one."""
    for name, copied in at_return.items():
        now = later[name]
        if _different(now, copied) is not None:
            return _unstable(f"{name}: the result of a call changed during a later call (a reused buffer)")
    return None


def replicated(outputs: Mapping[str, Tensor]) -> Verdict | None:
    """WRONG(rank_divergent) unless every rank's results, [ranks, ...], have the bits of the first one's: what
    follows from them, a token or an expert, would be another on another rank."""
    for name, of_ranks in outputs.items():
        first, *others = (result.reshape(-1).view(torch.uint8) for result in of_ranks)
        for rank, result in enumerate(others, 1):
            if not torch.equal(result, first):
                return Verdict.wrong("rank_divergent", f"{name}: rank {rank} has other bits than rank 0")
    return None


def without_null_block(
    outputs: Mapping[str, Tensor], caches: Sequence[str], dim: int = 0
) -> dict[str, Tensor]:
    """`outputs` with block 0 of the paged caches, and row 0 of states, left out: padding may write
    there, nothing reads it.
    `dim`: the one of the blocks."""
    return {
        name: tensor.narrow(dim, 1, tensor.shape[dim] - 1) if name in caches else tensor
        for name, tensor in outputs.items()
    }


def by_token(outputs: Mapping[str, Tensor], caches: Sequence[str], dim: int = 0) -> dict[str, Tensor]:
    """`outputs` with the blocks of the paged caches and their entries, dimensions `dim` and the next, as one:
    a row is what one token stored. In a row of a whole block it would count little beside what nobody
    changed."""
    return {
        name: tensor.flatten(dim, dim + 1) if name in caches else tensor for name, tensor in outputs.items()
    }


def as_judged(
    outputs: Mapping[str, Tensor], caches: Sequence[str], states: Sequence[str], dim: int = 0
) -> dict[str, Tensor]:
    """`outputs` without what nobody reads, and with paged caches by tokens. `dim`: the one of the blocks."""
    return by_token(without_null_block(outputs, [*caches, *states], dim), caches, dim)


def of_call(where: Place, full: Tensor, caches: Sequence[str], states: Sequence[str]) -> Place:
    """A place in outputs `as_judged` as one in the tensor of the call, `full`."""
    if where.output not in (*caches, *states):
        return where
    first, *rest = where.index
    head = divmod(first, full.shape[1]) if where.output in caches else (first,)
    return where.model_copy(update={"index": (head[0] + 1, *head[1:], *rest)})


def _different(ours: Tensor, theirs: Tensor) -> Tensor | None:
    """Which elements differ, None if no one does; one NaN is as good as another."""
    if torch.equal(ours, theirs):  # usually, and in a tenth of the time of what follows
        return None
    different = torch.ne(ours, theirs)
    if ours.is_floating_point():
        different &= ~(ours.isnan() & theirs.isnan())
    return different if bool(different.any()) else None


def _unstable(message: str) -> Verdict:
    return Verdict.wrong("unstable_result", message)
