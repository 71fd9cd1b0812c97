"""What a worker says about its time, against what the judge saw of it: pure functions on readings.

The judge's window of a call holds the call and what surrounds it: on a device that the judge holds the copies
of inputs and results (transfer/gpu_hold.py), elsewhere a request and an answer as well
(transfer/boxes.py). These cost the same in every worker, so what the window holds beyond the
claimed time must be alike on both sides; a candidate that claims less than it took has more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastkernels.judge.verdict import Verdict
from fastkernels.records import Failure
from fastkernels.runner.inside import flags
from fastkernels.runner.kernel_trial.blocks import Blocks, durations_ns
from fastkernels.runner.worker.process import Standing
from fastkernels.runner.worker.reading import Reading

# A busy machine makes answers late, never early, so the lowest tenth of the windows is compared. Whoever
# works outside its claimed time in most calls, and not in all, hides nothing there, so what lies between it
# and the median is compared as well: a speed-up is a median. The excess must also be more than the two
# baseline processes differ by.
MIN_READINGS = 10  # to speak of a tenth of them
_QUANTILES = (0.1, 0.3, 0.5)
_RESAMPLES, _DOUBT, _SEED = 500, 0.025, 20260926
MIN_PARTS = 5  # blocks of one link, or of half of them
# A single cold call of a few microseconds reads 3 to 10 % higher or lower by where it lies, and has its code
# to fetch, of every kernel in it. Of 192 honest implementations none lost more than a quarter of its time in
# a chain and 0.32 us beyond what the baseline lost (docs/record/measured.md).
_LOST_ALONE_SHARE, _LOST_ALONE_NS = 0.25, 750
# Of a walk over lines that come from memory: one in four of them was in the cache. After honest calls it was
# 0.96 to 1.05 of what it takes after the baseline's (84 trials), and 0.68 and 0.84 after two that fetched.
_WALK_SHARE = 0.9


class Slack(NamedTuple):
    """What claims may hide at most: `ns`, or a share of the claimed time that could make no win. `colder`:
    or a share of what the windows hold beside the claims, where that is code and copies of ours in the
    worker's process: they are slower behind a call that has the caches for itself. `slower`: a share of what
    is claimed beyond the baseline's time: who waits longer wakes up later."""

    ns: int
    share: float = 0.03
    colder: float = 0.0
    slower: float = 0.3


def impossible(reading: Reading) -> Verdict | None:
    """A claimed duration beyond the judge's own window."""
    if reading.claimed_ns <= reading.window_ns:
        return None
    return _implausible(
        f"claims {reading.claimed_ns / 1e3:.1f} us; the judge waited {reading.window_ns / 1e3:.1f} us in all"
    )


def understated(
    candidate: Sequence[Reading], baselines: Sequence[Sequence[Reading]], slack: Slack
) -> Verdict | None:
    """The candidate's windows are longer than the times it claims explain, by more than `slack` and than
    the windows of two baseline processes differ."""
    if len(candidate) < MIN_READINGS:
        return None
    times = Times.of(candidate, baselines)
    found = next((found for found, most in times.compared(slack) if found > most), None)
    if found is None:
        return None
    return _implausible(
        f"claims {times.claimed / 1e3:.1f} us, but its answers take {found / 1e3:.1f} us longer than "
        "the baseline's: part of the work was not timed"
    )


def unproven(
    candidate: Sequence[Reading], baselines: Sequence[Sequence[Reading]], slack: Slack
) -> str | None:
    """Why a win may be none, though `understated` accuses nobody: honest code may differ by as much. What the
    shortest windows hold beyond the claims comes to half of what is won. Calls that waited are not among
    those."""
    if len(candidate) < MIN_READINGS:
        return None
    times = Times.of(candidate, baselines)
    won = times.theirs - times.claimed
    ours, *theirs = (float(np.quantile(column, _QUANTILES[0])) for column in times.windows)
    hidden = ours - max(theirs)
    if won <= 0 or hidden <= max(slack.ns, won / 2):
        return None
    return (
        f"claims {times.claimed / 1e3:.1f} us where the baseline takes {times.theirs / 1e3:.1f}, and "
        f"its answers take {hidden / 1e3:.1f} us longer; "
        "here those of honest code differ by as much"
    )


def shared_work(alone: Blocks, chained: Blocks) -> Verdict | None:
    """Links that run much faster together than alone, other than the baseline's: one did the work of others.

    Every call loses some microseconds outside a chain, by its launches and its cold code: about the same on
    both sides, or a share of its own time where it is longer than the baseline, of many kernels. A call that
    saves by another's work is short in the chain.
    """
    if len(alone.c) < MIN_PARTS:
        return None
    ours, ours_chained = (float(np.median(durations_ns(blocks.c))) for blocks in (alone, chained))
    theirs, theirs_chained = (float(np.median(blocks.baseline_ns())) for blocks in (alone, chained))
    if lost_alone(ours, ours_chained, theirs, theirs_chained) <= _LOST_ALONE_NS:
        return None
    return _implausible(
        f"takes {ours / 1e3:.1f} us alone and {ours_chained / 1e3:.1f} us in a chain, where the baseline "
        f"takes {theirs / 1e3:.1f} and {theirs_chained / 1e3:.1f} us: its calls do each other's work"
    )


def lost_alone(ours: float, ours_chained: float, theirs: float, theirs_chained: float) -> float:
    """What a call loses outside a chain beyond what the baseline's does, and beyond a share of its time."""
    lost = (ours - ours_chained) - (theirs - theirs_chained)
    return lost - _LOST_ALONE_SHARE * max(ours_chained, theirs_chained)


def fetched(half: Blocks) -> Verdict | None:
    """The calls that ran brought arguments of others into the cache, which lie ready in a chain alone: the
    judge comes through them (measure/walk.py) sooner than after the baseline's calls."""
    walks = half.of_sides(lambda reading: reading.walk_ns)
    if min(map(len, walks)) < MIN_PARTS:
        return None
    ours, *theirs = (float(np.median(side)) for side in walks)
    if ours >= _WALK_SHARE * min(theirs):
        return None
    message = (
        f"arguments of calls that did not run are read in {ours / 1e3:.1f} us, and in "
        f"{min(theirs) / 1e3:.1f} after the baseline's calls: it fetches what no caller has ready"
    )
    return Verdict.failed("TAMPERED", Failure(message=message), "fetch")


def strayed(candidate: Reading) -> Verdict | None:
    """Calls that did not run have results: those that did wrote them, in a chain, where all arguments lie
    ready."""
    if not candidate.strayed:
        return None
    message = "results of calls that did not run were written: its calls do each other's work"
    return Verdict.failed("TAMPERED", Failure(message=message), "ahead")


def restless(how: str | None) -> Verdict | None:
    """It ran while it was stopped and others had their turns; `how`: what the kernel says of it."""
    if how is None:
        return None
    message = f"the process {how} while it was stopped, because the baseline had its turn"
    return Verdict.failed("TAMPERED", Failure(message=message), "pause")


def other_settings(candidate: Reading, baseline: Reading) -> Verdict | None:
    """A setting of its whole process is another than the baseline's: torch's threads, or a flag."""
    if candidate.threads != baseline.threads:
        message = f"torch's threads were set to {candidate.threads}; every worker has {baseline.threads}"
        return Verdict.failed("TAMPERED", Failure(message=message), "threads")
    changed = flags.differences(candidate.flags, baseline.flags)
    if not changed:
        return None
    message = f"{changed}: process-wide settings would change the rest of the model"
    return Verdict.failed("TAMPERED", Failure(message=message), "global-state")


def moved(before: Standing | None, after: Standing | None) -> Verdict | None:
    """A baseline process is scheduled otherwise than when it started. Nobody else is here to do that."""
    if before == after:
        return None
    message = f"the baseline's process was scheduled as {before} and is now as {after}"
    return Verdict.failed("TAMPERED", Failure(message=message), "baseline")


def disturbed(meddled: str | None, restless: str | None) -> Verdict | None:
    """Somebody else's signals stopped or continued a baseline process (Worker.meddled), which slows it or
    the other one down; or it ran in another's turn by itself, as on a machine with too much work."""
    if meddled is not None:
        message = f"the baseline's process {meddled}, by a signal that is not the judge's"
        return Verdict.failed("TAMPERED", Failure(message=message), "baseline")
    if restless is not None:
        message = f"the baseline's process {restless} while it was stopped, because another had its turn"
        return Verdict.failed("INVALID_BASELINE", Failure(message=message))
    return None


class Times(NamedTuple):
    """Medians of what the candidate and its baselines claim; and, a column for each of them, the candidate
    first, what windows hold beyond the claims."""

    claimed: float
    theirs: float
    windows: Sequence[np.ndarray]

    @classmethod
    def of(cls, candidate: Sequence[Reading], baselines: Sequence[Sequence[Reading]]) -> Times:
        return cls(
            claimed=float(np.median([r.claimed_ns for r in candidate])),
            theirs=float(np.median([r.claimed_ns for side in baselines for r in side])),
            windows=[
                np.array([r.window_ns - r.claimed_ns for r in side], dtype=np.float64)
                for side in (candidate, *baselines)
            ],
        )

    def compared(self, slack: Slack) -> list[tuple[float, float]]:
        """By how much the candidate's windows lie above its baselines' at each of the quantiles, at least,
        and by how much they may."""
        share = slack.share * self.claimed + slack.slower * max(0.0, self.claimed - self.theirs)
        theirs_QB = np.stack([np.quantile(column, _QUANTILES) for column in self.windows[1:]], axis=1)
        apart_Q = np.ptp(theirs_QB, axis=1)
        most_Q = np.maximum(slack.ns + apart_Q, slack.colder * theirs_QB.min(axis=1)).clip(min=share)
        found_Q = _least_excess(self.windows)
        return [(float(found), float(most)) for found, most in zip(found_Q, most_Q)]


def _least_excess(columns: Sequence[np.ndarray]) -> np.ndarray:
    """By how much each of the quantiles of the first column lies above that of every other, at least: the
    lower end of a bootstrap interval. On a machine with more work than cores a tenth is a matter of luck."""
    rng = np.random.default_rng(_SEED)
    ours, *theirs = (
        np.quantile(column[rng.integers(len(column), size=(_RESAMPLES, len(column)))], _QUANTILES, axis=1)
        for column in columns
    )
    return np.quantile(ours - np.max(theirs, axis=0), _DOUBT, axis=1)


def _implausible(message: str) -> Verdict:
    return Verdict.failed("IMPLAUSIBLE", Failure(message=message))
