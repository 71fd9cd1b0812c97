"""The timed part of a trial: blocks, each of them checked, until the speed-up is known or the budget spent.

In the graph contract chains are renewed from time to time, so that all sides are timed at many places in
memory, and now and then one link runs alone (claim_checks.py). All that is timed has the lengths of the
case's batch, which its least time is of; blocks of other lengths are checked in between, so that nobody can
plan for the lengths of an earlier call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastkernels.judge.verdict import Verdict
from fastkernels.loader.inputs import DISTRIBUTIONS
from fastkernels.measure import stats
from fastkernels.runner.kernel_trial import claim_checks
from fastkernels.runner.kernel_trial.bench import Bench, Outcome
from fastkernels.runner.kernel_trial.block_runner import BlockRunner
from fastkernels.runner.kernel_trial.blocks import Blocks, light
from fastkernels.runner.kernel_trial.referee import Referee
from fastkernels.runner.worker.reading import Reading, mean

WARM_UP_BLOCKS = 3  # checked, not counted: clocks and caches settle
BUDGET_EXTENSION = 2  # times the budget, for a case whose interval is still unusably wide
FEW_SAMPLES_EXTENSION = 20  # times the budget, for calls so slow that it holds fewer than MIN_SAMPLES
USUAL_SHARE = 0.75  # of timed blocks draw `normal`; the others any distribution
FRESH_SHARE = 0.25  # of blocks find their inputs at new addresses
ORACLE_SHARE = 0.1  # of timed blocks also meet the oracle; nobody but the judge knows which
PARAMETER_ECHO_SHARE = 0.15  # of blocks look whether the parameters changed; at other inputs all do
RESULT_ECHO_SHARE = 0.25  # of blocks ask for the results once more after the clock has stopped
ALONE_SHARE = 0.25  # of blocks are followed by one of a single link, in secret (claim_checks.shared_work)
HALF_SHARE = 0.25  # of blocks are followed by one of half of the links, in secret (claim_checks.fetched)
OTHER_LENGTHS_SHARE = 0.1  # of blocks are followed by one of other lengths, checked and not counted
LATE_SHARE = 0.1  # of blocks of a group are followed by one in which a rank is late, drawn in secret
LEAST_ASIDE = 5  # blocks of other lengths, and with a late rank, whatever was drawn
REPACK_SHARE = 0.06  # of blocks bring new parameters to a module that repacks them
# Links of a chain for each block that it lasts: long chains cost more to build, and need it less.
LINKS_OF_A_BLOCK = 4
MIN_HALVED = 4  # links
MIN_GROWTH = 1.25  # samples between two looks at the interval grow by this


_NO_INTERVAL = stats.Interval(1.0, 1.0, 1.0, 0)


@dataclass(frozen=True)
class Sampled:
    """`blocks` that count, `alone` those of single links of a chain, and `half` those of half of it."""

    blocks: Blocks
    alone: Blocks
    half: Blocks
    interval: stats.Interval
    decision: stats.Stop


@dataclass
class _Aside:
    """Blocks that count for something else: they follow this share of those that count, drawn in secret. What
    is missing to `least` is made up for at the end, of which no candidate knows."""

    share: float
    least: int
    block: Callable[[int], Verdict | None]  # after block `index`
    blocks: int = 0  # so far

    def run(self, index: int) -> Verdict | None:
        self.blocks += 1
        return self.block(index)


class Sampling:
    """`run` once, with everything captured that is to be timed captured."""

    def __init__(self, bench: Bench, runner: BlockRunner, referee: Referee, outcome: Outcome) -> None:
        self._bench, self._runner, self._referee, self._outcome = bench, runner, referee, outcome
        self._alone, self._half = Blocks(), Blocks()
        links = runner.plan.links if outcome.contract == "graph" else 1
        asides = (
            (links > 1, _Aside(ALONE_SHARE, claim_checks.MIN_PARTS, self._one)),
            (links >= MIN_HALVED, _Aside(HALF_SHARE, claim_checks.MIN_PARTS, self._some)),
            (runner.has_lengths, _Aside(OTHER_LENGTHS_SHARE, LEAST_ASIDE, self._other_lengths)),
            (runner.ranks > 1, _Aside(LATE_SHARE, LEAST_ASIDE, self._late)),
        )
        self._asides = [aside for is_asked, aside in asides if is_asked]

    def run(self) -> Sampled | Verdict:
        """Blocks until the interval is narrow or the budget spent."""
        bench, blocks = self._bench, Blocks()
        budget_s = usual_budget_s = bench.budget_s
        begin, index, next_look = time.monotonic(), 0, float(stats.MIN_SAMPLES)
        while True:
            if self._renews(index) and (verdict := self._runner.renew()):
                return verdict
            if verdict := self._counted(blocks, index):
                return verdict
            for aside in self._asides:
                if bench.draws(aside.share) and (verdict := aside.run(index)):
                    return verdict
            index += 1
            elapsed_s = time.monotonic() - begin
            if len(blocks.c) < next_look and elapsed_s < budget_s:
                continue
            counted = blocks.unthrottled()
            if len(counted.c) < stats.MIN_SAMPLES and elapsed_s < FEW_SAMPLES_EXTENSION * usual_budget_s:
                continue
            next_look = max(next_look, len(blocks.c) * MIN_GROWTH)
            interval = counted.speedup() if len(counted.c) > 1 else None
            decision = stats.stop(interval, len(counted.c), elapsed_s, budget_s)
            if decision == "unstable" and budget_s == usual_budget_s:
                budget_s *= BUDGET_EXTENSION
            elif decision != "continue":
                for aside in self._asides:
                    while aside.blocks < aside.least:
                        if verdict := aside.run(index):
                            return verdict
                return Sampled(counted, self._alone, self._half, interval or _NO_INTERVAL, decision)

    def _counted(self, blocks: Blocks, index: int) -> Verdict | None:
        """A block that counts once all is warm. Where calls are not captured, one for each layout of the
        inputs: a ratio is of both."""
        turns = 1 if self._outcome.contract == "graph" else len(self._runner.layouts)
        found = self._together([None] * turns, first=not index)
        if isinstance(found, Verdict):
            return found
        if index >= WARM_UP_BLOCKS:
            blocks.add(index - WARM_UP_BLOCKS, *found)
        return None

    def _one(self, index: int) -> Verdict | None:
        """A block of one link, whichever; of each layout of the inputs, since a chain has both."""
        links = range(self._runner.plan.links)
        found = self._together([[self._bench.rng.choice(some or links)] for some in self._runner.layouts])
        if isinstance(found, Verdict):
            return found
        self._alone.add(index, *found)
        return None

    def _some(self, index: int) -> Verdict | None:
        """A block of half of the links, whichever."""
        links = self._runner.plan.links
        found = self._block(sorted(self._bench.rng.sample(range(links), links // 2)))
        if isinstance(found, Verdict):
            return found
        self._half.add(index, *found)
        return None

    def _together(
        self, links: Sequence[list[int] | None], first: bool = False
    ) -> tuple[Reading, Reading, Reading] | Verdict:
        """One sample: the mean over a block for each of these. The results of a block, gigabytes perhaps, are
        gone before the next one has any."""
        sides: tuple[list[Reading], ...] = ([], [], [])
        for some in links:
            found = self._block(some, first)
            if isinstance(found, Verdict):
                return found
            for side, reading in zip(sides, found, strict=True):
                side.append(light(reading))
            del found, reading
        a, c, a2 = map(mean, sides)
        return a, c, a2

    def _other_lengths(self, index: int) -> Verdict | None:
        found = self._block(other_lengths=True)
        return found if isinstance(found, Verdict) else None

    def _late(self, index: int) -> Verdict | None:
        found = self._block(late=self._bench.rng.randrange(self._runner.ranks))
        return found if isinstance(found, Verdict) else None

    def _block(
        self,
        links: list[int] | None = None,
        first: bool = False,
        other_lengths: bool = False,
        late: int | None = None,
    ) -> tuple[Reading, Reading, Reading] | Verdict:
        """One timed and checked block of A, C, A'. `links`: of the chain, with the parameters that they have.
        `other_lengths`: of requests, than the case's. `late`: a rank; the readings are no times."""
        bench, runner, outcome = self._bench, self._runner, self._outcome
        distribution = "normal" if bench.draws(USUAL_SHARE) else bench.rng.choice(DISTRIBUTIONS)
        parameters = links is None and (not runner.c.prepares or self._repacks(first))
        runner.refill(distribution, parameters, other_lengths=other_lengths)
        found = runner.block(
            bench.rng.sample(runner.everybody, 3),
            outcome.contract,
            fresh=outcome.contract != "graph" and bench.draws(FRESH_SHARE),
            parameters=parameters,
            echo_parameters=links is None and bench.draws(PARAMETER_ECHO_SHARE),
            links=links,
            echo_results=bench.draws(RESULT_ECHO_SHARE),
            late=late,
        )
        if isinstance(found, Verdict):
            return found
        a, c, a2 = (found[id(handle)] for handle in runner.everybody)
        oracle_link = bench.rng.randrange(len(c.described)) if bench.draws(ORACLE_SHARE) else None
        inputs = runner.inputs_of(links)
        verdict = self._referee.judge(inputs, c, a, distribution, oracle_link) or claim_checks.impossible(c)
        if verdict:
            return verdict if late is None else verdict.explained(where_late(late))
        return a, c, a2

    def _repacks(self, first: bool) -> bool:
        """Whether an uncaptured module gets parameters to repack in this block; a captured one gets them with
        a new chain. The first block brings them to all sides: until then not all had the same calls."""
        return self._outcome.contract != "graph" and (first or self._bench.draws(REPACK_SHARE))

    def _renews(self, index: int) -> bool:
        """Whether this block gets a new chain: at other places, and for parameters that are repacked.

        A chain of one link keeps its place: it is of long calls, or of gigabytes.
        """
        if self._outcome.contract != "graph" or not index:
            return False
        links = self._runner.plan.links
        due = links > 1 and index % max(1, links // LINKS_OF_A_BLOCK) == 0
        return due or (self._runner.c.prepares and self._bench.draws(REPACK_SHARE))


def where_late(rank: int) -> str:
    return f"where rank {rank} comes after the others, as in a model, and not when the clock starts"
