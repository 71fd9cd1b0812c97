"""Whether a head is slower than its base: pure functions on looks. A look is one measurement of both, in
processes of their own.

    change       1 / speedup - 1                               of the base's time; above 0 the head is slower
    noise        what two processes of the base differed by beside it; at least `least_noise` of its contract
    limit        max(max_regression, noise, min_us / base_us)  a change within it is none; the noise is a
                 factor, either way: of 60 % it hides what takes less than 1.6 times as long, or as short
    lost         the head cannot be captured or compiled where the base can, whatever the numbers say
    slow         the whole interval lies beyond the limit
    fast         the whole interval lies beyond it on the other side
    same         the interval excludes a regression beyond the limit
    unsure       none of these, no numbers, or the head waits for the device in its call; and what would be
                 same, of an interval that is too wide for a number

A first look that is not `same` is repeated in fresh processes: two processes with the same code differ,
steadily while they live (docs/record/measured.md), so one look alone proves no change.

    BROKEN       two looks say lost, and none denies it
    SLOW         two looks are slow, and none denies it
    FAST         two looks are fast, and none is slow or same
    SAME         the first look says so, or more looks deny a regression than not
    AMBIGUOUS    everything else

Durations under two contracts are never compared. A look times both sides under one; if looks at a row differ
in it (a capture may fail for want of memory), those of the primary one speak, and others are unsure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastkernels.measure.stats import geomean
from fastkernels.records import Contract, GateLimits, GateRow, GateVerdict, Look, least_noise, primary

Kind = Literal["fast", "same", "slow", "unsure", "lost"]

REPETITIONS = 2  # at most: with the first look three, so that a majority exists
FAILING: frozenset[GateVerdict] = frozenset({"SLOW", "MISSING", "BROKEN"})
_PROVES = 2  # looks that agree on a change
_DENY: tuple[Kind, ...] = ("fast", "same")


def noise_pct(look: Look, of_row: Contract | None = None) -> float:
    """What processes with the same code may differ by, as far as this look and its contract tell. `of_row`:
    the contract of its row, for a look of an older report, which has none."""
    contract = look.contract or of_row
    assert look.noise_pct is not None
    assert contract is not None
    return max(look.noise_pct, 100 * least_noise(contract, look.links))


def limit(look: Look, limits: GateLimits) -> float:
    """The largest change to the slower, as a part of the base's time, that counts as none."""
    return max(_threshold(look, limits), noise_pct(look) / 100)


def _threshold(look: Look, limits: GateLimits) -> float:
    """The same without the noise."""
    assert look.base_us is not None
    return max(limits.max_regression_pct / 100, limits.min_regression_us / look.base_us)


def kind(look: Look, limits: GateLimits) -> Kind:
    """What one look says by itself."""
    if look.lost is not None:
        return "lost"
    if look.speedup_ci is None or look.waits:
        return "unsure"
    most = limit(look, limits)
    low, high = look.speedup_ci
    least_change, greatest_change = 1 / high - 1, 1 / low - 1
    if least_change > most:
        return "slow"
    if greatest_change < -_threshold(look, limits) and low > 1 + noise_pct(look) / 100:
        return "fast"
    return "unsure" if greatest_change > most or look.unstable else "same"


def kinds_of(looks: Sequence[Look], limits: GateLimits) -> list[Kind]:
    """What each of them says of the row."""
    contract = _contract(looks)

    def said(look: Look) -> Kind:
        found = kind(look, limits)
        return found if found == "lost" or look.contract == contract else "unsure"

    return [said(look) for look in looks]


def _contract(looks: Sequence[Look]) -> Contract | None:
    """The one whose looks speak; None without numbers."""
    return primary(look.contract for look in looks if look.speedup is not None and look.contract)


def wanted(looks: Sequence[Look], limits: GateLimits) -> int:
    """How many looks a row needs, by those that it has: one that shows a change has to be repeated."""
    kinds = kinds_of(looks, limits)
    if not kinds or kinds[0] == "same":
        return 1
    first, second = kinds[0], (kinds[1:] or [kinds[0]])[0]
    agree = first == second in ("slow", "lost") or (first in _DENY and second in _DENY)
    return _PROVES if agree else 1 + REPETITIONS


def settle(looks: Sequence[Look], limits: GateLimits) -> tuple[GateVerdict, str]:
    """The verdict of a row that is right on both sides, and why. `looks`: the first, then its repetitions."""
    kinds = kinds_of(looks, limits)
    first, count = kinds[0], {one: kinds.count(one) for one in kinds}
    if first == "same":
        return "SAME", "no change beyond thresholds and noise"
    denied = sum(one in _DENY for one in kinds)
    changes: tuple[tuple[Kind, GateVerdict], ...] = (("lost", "BROKEN"), ("slow", "SLOW"), ("fast", "FAST"))
    for change, verdict in changes:
        agree = count.get(change, 0)
        if agree >= _PROVES and agree + count.get("unsure", 0) == len(looks):
            seen = f"in {agree} of {len(looks)} looks"
            if change == "lost":
                return verdict, f"{next(look.lost for look in looks if look.lost)} ({seen})"
            return verdict, f"{change}er, beyond thresholds and noise, {seen}"
    if 2 * denied > len(looks) and "lost" not in count:
        return "SAME", f"the first look was {first}; fresh processes deny a change ({', '.join(kinds[1:])})"
    told = "; ".join(_told(look, said) for look, said in zip(looks, kinds))
    why = [text for look in looks if (text := look.lost or look.problem or _unclaimed(look, looks))]
    return "AMBIGUOUS", f"{len(looks)} looks do not prove one answer: {told}" + (
        f" ({why[-1]})" if why else ""
    )


def _unclaimed(look: Look, looks: Sequence[Look]) -> str | None:
    """Why its numbers prove nothing, if so."""
    if look.waits:
        return "the head waits for the device in its call: the host's work is in its time"
    if look.contract != (contract := _contract(looks)):
        return f"what was timed under {look.contract} is not compared with {contract}"
    return None


def _told(look: Look, said: Kind) -> str:
    """One look in short: `slow, +5.1 .. +7.0 %, noise 1.2 %`"""
    if look.lost is not None or look.speedup_ci is None:
        return f"{said}, no numbers" if look.lost is None else said
    low, high = (100 * (1 / speedup - 1) for speedup in reversed(look.speedup_ci))
    return f"{said}, {low:+.1f} .. {high:+.1f} %, noise {noise_pct(look):.1f} %"


def middle(looks: Sequence[Look]) -> Look:
    """The look that stands for a row in tables: of those with numbers of the row's contract the one of the
    median speed-up (of two the slower)."""
    contract = _contract(looks)
    numbers = [look for look in looks if look.speedup is not None and look.contract == contract]
    known = sorted(numbers, key=lambda look: look.speedup or 0.0)
    return known[(len(known) - 1) // 2] if known else looks[0]


def hidden_pct(row: GateRow, limits: GateLimits) -> float | None:
    """Of a row that is SAME the noise, where it hides regressions that the user wants to see."""
    look = middle(row.looks) if row.looks and row.verdict == "SAME" else None
    if look is None or look.noise_pct is None:
        return None
    noise = noise_pct(look, row.contract)
    return noise if noise > limits.max_regression_pct else None


def unseen(rows: Sequence[GateRow], limits: GateLimits) -> tuple[str, ...]:
    """A note where there are such rows."""
    same = sum(bool(row.looks) and row.verdict == "SAME" for row in rows)
    loud = [noise for row in rows if (noise := hidden_pct(row, limits)) is not None]
    if not loud:
        return ()
    return (
        f"{len(loud)} of {same} timed rows that are SAME have more noise (up to {max(loud):.1f} %) than "
        f"--max-regression {limits.max_regression_pct:g} %: a regression within the noise, their ±, is not "
        "seen there",
    )


def overall(rows: Sequence[GateRow]) -> tuple[float, tuple[float, float]] | None:
    """Geometric mean of the rows' speed-ups, weighted by calls, between those of their lower and upper ends.
    Over the rows of the primary contract: durations under two contracts never mix.

    The ends assume that all rows err to the same side: wider than an interval of the mean would be. None
    without a number.
    """
    contract = primary(row.contract for row in rows)
    known = [
        (look.speedup, *look.speedup_ci, row.calls)
        for row in rows
        if row.contract == contract and row.looks and (look := middle(row.looks)).speedup and look.speedup_ci
    ]
    if not known:
        return None
    speedups, lows, highs, calls = (list(column) for column in zip(*known))
    return geomean(speedups, calls), (geomean(lows, calls), geomean(highs, calls))


def reached(
    found: tuple[float, tuple[float, float]] | None, wanted: float | None
) -> Literal["met", "missed", "unclear"] | None:
    """Whether the mean speed-up is at least `wanted`, with all of its interval or with none of it."""
    if wanted is None:
        return None
    if found is None:
        return "unclear"
    low, high = found[1]
    return "met" if low >= wanted else "missed" if high < wanted else "unclear"


def outcome(
    rows: Sequence[GateRow], min_speedup: Literal["met", "missed", "unclear"] | None, complete: bool = True
) -> Literal["passed", "failed", "unclear"]:
    """Of the whole gate: one failing row fails it; otherwise one ambiguous row leaves it unclear, and so does
    an interruption: what was not compared has not passed."""
    if min_speedup == "missed" or any(row.verdict in FAILING for row in rows):
        return "failed"
    if (
        min_speedup == "unclear"
        or not complete
        or not rows
        or any(row.verdict == "AMBIGUOUS" for row in rows)
    ):
        return "unclear"
    return "passed"
