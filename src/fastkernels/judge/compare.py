"""The error-ratio gate: a candidate may be as wrong as twice the baseline, measured against a float64 oracle.

With o the oracle, b the baseline, c the candidate, u(dtype) what rounding alone may cost (bounds.py):

    e(x)   = ||x - o|| / ||o||                       over the whole output, and for its worst row
    A      = min(max(k e(b), u(dtype)), 1/2)         allowed; k = 2
    passed ⟺ e(c) <= A for the whole and for the worst row, of every output and every mutated argument

Zeros have e = 1 exactly, so the cap of 1/2 makes it impossible that they pass, however bad the baseline is; a
baseline beyond the cap is invalid. A row is an index of the first dimension (a token, a request, a cache
block); a vector is one row. Rows in which the oracle vanishes (its root mean square is below the dtype's
smallest normal number) have no relative error: there the candidate's absolute error is compared with k times
the baseline's. The same holds for a few rows that are next to nothing beside the numbers they are a sum of,
such as the mean of 16,384 values, so that k e(b) is beyond the cap, or, where the gate looks again, k m is
(conditioning.py); where they are not few, the baseline is wrong. The whole is taken without such rows.

The quick gate, for every timed iteration: an oracle each time would cost far more than the iteration itself,
but its inputs also went through the baseline, and

    ||c - b|| <= ||c - o|| + ||b - o|| <= (A + e(b)) ||o||,     e(b) <= A / k,     ||o|| <= ||b|| / (1 - e(b))

so every candidate that passes the full gate also passes

    ||c - b|| / ||b|| <= (1 + 1/k) A / (1 - A/k)  =: Q(A)

(where k e(b) > u this is (k + 1) e(b), up to the last factor). A is known from oracle comparisons of the same
case and distribution. What violates Q is *suspect*: the caller then runs the oracle on that iteration, so an
unlucky A never condemns anybody. What passes Q has e(c) <= Q (1 + e(b)) + e(b), about 2 A for k = 2: an error
between A and 2 A could slip through one iteration, but a secret random subset meets the oracle, and no
candidate knows which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fastkernels.judge import bounds, place
from fastkernels.judge.bounds import MAX_ALLOWED, Excuse, K, allow, quick_bound
from fastkernels.judge.distance import Distances, Errors, distances, errors
from fastkernels.judge.selection import misplaced
from fastkernels.judge.verdict import Verdict
from fastkernels.records import Failure


@dataclass(frozen=True, slots=True)
class OutputErrors:
    """One output of one comparison. `ratio` is the worst error / allowed error; at most 1 passes. `largest`:
    of the candidate's whole and of any of its rows, be it the one that counts or not."""

    name: str
    candidate: Errors
    baseline: Errors
    allowed: Errors
    largest: float
    rows: Distances = field(repr=False)  # of the candidate
    row: int | None = None  # the one that counts, once the gate has looked again

    @property
    def ratio(self) -> float:
        return max(self._ratios)

    @property
    def worst(self) -> str:
        """Which of its errors is farthest beyond what is allowed: `whole`, `row` or `vanishing`."""
        ratios = self._ratios
        return max(("vanishing", "whole", "row"), key=lambda name: getattr(ratios, name))

    @property
    def _ratios(self) -> Errors:
        return Errors(*map(_ratio, self.candidate, self.allowed))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the judge found. Errors are of the output with the worst ratio; `allowed` feeds the quick gate."""

    verdict: Verdict
    error_ratio: float | None = None
    baseline_error: float | None = None
    candidate_error: float | None = None
    outputs: tuple[OutputErrors, ...] = ()
    allowed: Mapping[str, Errors] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.verdict.status == "PASSED"

    @classmethod
    def of(cls, verdict: Verdict, outputs: tuple[OutputErrors, ...] = ()) -> Comparison:
        if not outputs:
            return cls(verdict)
        worst = max(outputs, key=lambda o: o.ratio)
        return cls(
            verdict=verdict,
            error_ratio=worst.ratio,
            baseline_error=max(worst.baseline[:2]),
            candidate_error=max(worst.candidate[:2]),
            outputs=outputs,
            allowed={o.name: o.allowed for o in outputs},
        )


class Standard:
    """What results are held against: the baseline's and the oracle's outputs of one call, by name. What is
    known of these two serves every candidate of the call. Shapes and dtypes are taken as checked (rules.py).
    """

    def __init__(self, baseline: Mapping[str, Tensor], oracle: Mapping[str, Tensor]) -> None:
        self._baseline, self._oracle = baseline, oracle
        self._theirs: dict[str, Distances] = {}  # of the baseline
        self._errors: dict[str, Errors] = {}  # what they come to
        self._apart: dict[str, Tensor | None] = {}  # rows without a relative error, where there are any
        self._invalid: dict[str, Verdict | None] = {}
        self._own: dict[str, tuple[Excuse, OutputErrors]] = {}  # the baseline's, and by what it was excused

    def compare(
        self, candidate: Mapping[str, Tensor], logits: Mapping[str, Tensor] | None = None
    ) -> Comparison:
        """The full gate over all outputs.

        Verdicts: PASSED, WRONG(value), WRONG(nonfinite), INVALID_BASELINE. Integer outputs must be equal to
        the oracle's; those that were chosen by `logits` may differ where these tie (judge/selection.py).
        """
        judged: list[OutputErrors] = []
        for name, truth in self._oracle.items():
            ours, theirs = candidate[name], self._baseline[name]
            if not ours.is_floating_point():
                if verdict := _integers(name, ours, theirs, truth, (logits or {}).get(name)):
                    return Comparison.of(verdict)
                continue
            if verdict := self._unsound(name):
                return Comparison.of(verdict, tuple(judged))
            baseline = self._errors[name]
            found, own = self._theirs[name], baseline
            if not torch.equal(ours, theirs):  # one pass, not a dozen, over caches that a call leaves alone
                if verdict := nonfinite(name, ours, theirs, truth):
                    return Comparison.of(verdict, tuple(judged))
                found = distances(ours, truth)
                own = found.errors(theirs.dtype, self._apart.get(name))
            bound = allow(baseline, theirs.dtype)
            judged.append(OutputErrors(name, own, baseline, bound, max(own[:2]), found))
        return _gated(tuple(judged))

    def distances(
        self, outputs: Mapping[str, Tensor], truth: Mapping[str, Tensor] | None = None
    ) -> dict[str, Distances]:
        """Of the floating-point outputs, in whatever precision, after a comparison. `truth`: the oracle's
        outputs of another call, in place of this one's."""
        right = self._oracle if truth is None else truth
        return {name: distances(outputs[name], right[name]) for name in self._theirs}

    def excuses(self, moves: Mapping[str, Sequence[Distances]]) -> dict[str, Excuse]:
        """For `loosened`. `moves` (judge/conditioning.py): how far the oracle moves on these inputs."""
        return {
            name: bounds.excuse(self._theirs[name], self._baseline[name], found, self._apart.get(name))
            for name, found in moves.items()
        }

    def loosened(self, found: Comparison, excuses: Mapping[str, Excuse]) -> Comparison:
        """`found`, where inputs excuse more. Of all rows the one counts that is farthest beyond its bound."""
        judged = [self._excused(output, excuses[output.name]) for output in found.outputs]
        return _gated(tuple(judged)) if judged else found

    def _excused(self, output: OutputErrors, excuse: Excuse) -> OutputErrors:
        if output.rows is not self._theirs[output.name]:
            return _loosest(output, excuse, self._baseline[output.name].dtype)
        # The baseline's own, of caches that most calls leave alone: found once.
        known = self._own.get(output.name)
        if known is None or known[0] is not excuse:
            known = excuse, _loosest(output, excuse, self._baseline[output.name].dtype)
            self._own[output.name] = known
        return known[1]

    def _unsound(self, name: str) -> Verdict | None:
        """Why nothing can be judged against the baseline; its errors are known then."""
        if name not in self._invalid:
            self._invalid[name] = self._looked_at(name)
        return self._invalid[name]

    def _looked_at(self, name: str) -> Verdict | None:
        theirs, truth = self._baseline[name], self._oracle[name]
        # An oracle beyond the dtype's range counts as infinite.
        expected = truth.to(device=theirs.device).to(theirs.dtype).isfinite()
        if spoiled := int((expected & ~theirs.isfinite()).sum()):
            return _invalid(
                f"{name}: the baseline has {spoiled} non-finite elements where the oracle is finite"
            )
        self._theirs[name] = each = distances(theirs, truth)
        found = each.errors(theirs.dtype)
        if found.whole <= MAX_ALLOWED and K * found.row > MAX_ALLOWED:
            self._apart[name] = bounds.few(each.beyond(MAX_ALLOWED / K))
            found = each.errors(theirs.dtype, self._apart[name])
        self._errors[name] = found
        if max(found[:2]) <= MAX_ALLOWED:
            return None
        return _invalid(
            f"{name}: the baseline is {found.whole:.3g} (worst row {found.row:.3g}) away from the float64 "
            f"oracle, more than {MAX_ALLOWED}: nothing can be judged against it"
        )


def _loosest(output: OutputErrors, excuse: Excuse, dtype: torch.dtype) -> OutputErrors:
    """By its bounds with `excuse`; the row that counts is the farthest beyond its own."""
    ours = output.rows.errors(dtype, excuse.apart_R)
    largest = max(ours[:2])
    row, at, error_R = 0.0, None, output.rows.relative(dtype, excuse.apart_R)
    if len(error_R):
        at = int((error_R / excuse.row_R).argmax())
        ours, row = ours._replace(row=float(error_R[at])), float(excuse.row_R[at])
    allowed = allow(Errors(excuse.whole, row, excuse.vanishing), dtype)
    found = OutputErrors(output.name, ours, excuse.baseline, allowed, largest, output.rows, at)
    if found.worst == "vanishing" and len(error_R):
        found = replace(found, row=output.rows.vanishing_row(dtype, excuse.apart_R))
    return found


def _gated(outputs: tuple[OutputErrors, ...]) -> Comparison:
    bad = [output for output in outputs if output.ratio > 1]
    if not bad:
        return Comparison.of(Verdict.passed(), outputs)
    worst = max(bad, key=lambda output: output.ratio)
    return Comparison.of(Verdict.wrong("value", _explain(worst)), outputs)


def located(found: Comparison, ours: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> Verdict:
    """The verdict of a comparison that was `loosened`, with the element of `ours` that is farthest off."""
    if found.verdict.label != "WRONG(value)" or not found.outputs:
        return found.verdict  # or it has its place already
    worst = max(found.outputs, key=lambda output: output.ratio)
    name, row = worst.name, None if worst.worst == "whole" else worst.row
    where = place.worst(
        name, ours[name], truth[name], worst.rows, worst.allowed, row, worst.worst == "vanishing"
    )
    return found.verdict.noted(place=where)


def suspect(
    candidate: Mapping[str, Tensor], baseline: Mapping[str, Tensor], allowed: Mapping[str, Errors]
) -> str | None:
    """The quick gate: why this iteration needs the oracle, or None. `allowed` comes from full comparisons
    (`merge`)."""
    for name, theirs in baseline.items():
        ours = candidate[name]
        if torch.equal(ours, theirs):
            continue
        if not theirs.is_floating_point():
            return f"{name}: integers differ from the baseline's"
        if strays(ours, theirs) is not None:
            return f"{name}: other elements are non-finite than the baseline's"
        found, bound = errors(ours, theirs), allowed[name]
        if found.whole >= quick_bound(bound.whole) or found.row >= quick_bound(bound.row):
            return f"{name}: {found.whole:.3g} (worst row {found.row:.3g}) away from the baseline's output"
        if found.vanishing > (1 + 1 / K) * bound.vanishing:
            return f"{name}: {found.vanishing:.3g} where the baseline's output vanishes"
    return None


def merge(*allowances: Mapping[str, Errors]) -> dict[str, Errors]:
    """The loosest of several `Comparison.allowed`, for each output: the bound for iterations without an
    oracle."""
    merged: dict[str, Errors] = {}
    for allowed in allowances:
        for name, bound in allowed.items():
            merged[name] = merged[name].worst(bound) if name in merged else bound
    return merged


def nonfinite(name: str, candidate: Tensor, baseline: Tensor, oracle: Tensor) -> Verdict | None:
    """WRONG(nonfinite) unless the candidate is finite exactly where the baseline is, with its infinities."""
    astray = strays(candidate, baseline)
    if astray is None:
        return None
    return Verdict.wrong(
        "nonfinite",
        f"{name}: {int(astray.sum())} of {candidate.numel()} elements are NaN or infinite where the "
        "oracle is finite, or finite where it is not",
        place.first(name, astray, candidate, oracle),
    )


def strays(ours: Tensor, theirs: Tensor) -> Tensor | None:
    """Which elements are finite on one side only, or not the same infinity as theirs; None if no one is."""
    finite, expected = ours.isfinite(), theirs.isfinite()
    if bool((finite & expected).all()):
        return None
    astray = (finite != expected) | (theirs.isinf() & (ours != theirs))
    return astray if bool(astray.any()) else None


def _integers(
    name: str, candidate: Tensor, baseline: Tensor, oracle: Tensor, logits: Tensor | None
) -> Verdict | None:
    truth = oracle.to(device=candidate.device)
    if bool(_differing(baseline, truth, logits).any()):
        return _invalid(f"{name}: the baseline's integers differ from the oracle's")
    wrong = _differing(candidate, truth, logits)
    if not bool(wrong.any()):
        return None
    message = f"{name}: {int(wrong.sum())} of {truth.numel()} integers differ"
    return Verdict.wrong("value", message, place.first(name, wrong, candidate, truth))


def _differing(ours: Tensor, truth: Tensor, logits: Tensor | None) -> Tensor:
    return ours.to(truth.dtype) != truth if logits is None else misplaced(ours, truth, logits)


def _invalid(message: str) -> Verdict:
    return Verdict.failed("INVALID_BASELINE", Failure(message=message))


def _explain(output: OutputErrors) -> str:
    ours, theirs, bound = output.candidate, output.baseline, output.allowed
    if output.worst == "vanishing":
        return (
            f"{output.name}: {ours.vanishing:.3g} (root mean square) in a row that should be next to zero; "
            f"at most {bound.vanishing:.3g} is allowed"
        )
    if output.worst == "whole":
        return (
            f"{output.name}: relative L2 error {ours.whole:.3g} against float64, "
            f"the baseline has {theirs.whole:.3g}: "
            f"{output.ratio:.3g} times the allowed {bound.whole:.3g}"
        )
    return (
        f"{output.name}: the worst row has relative L2 error {ours.row:.3g} against float64, the baseline's "
        "worst "
        f"{theirs.row:.3g}: {output.ratio:.3g} times the allowed {bound.row:.3g}"
    )


def _ratio(error: float, bound: float) -> float:
    return error / bound if bound else (0.0 if not error else math.inf)
