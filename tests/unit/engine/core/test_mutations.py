"""Bugs that engines really have, seeded one at a time: the property test of test_scheduler.py must catch
each."""

from __future__ import annotations

import numpy as np
import pytest

from fastkernels.engine.core.admission import Admissions
from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.cache import BlockGroup
from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.core.prefix_cache import Prefixes, SharedGroup
from fastkernels.engine.core.scheduler import Scheduler
from tests.unit.engine.fake_device import FakeDevice, Parts, check

SEEDS = range(400)


class WindowFreedOneTokenEarly(BlockGroup):
    def first_live(self, scheduled):
        return super().first_live(scheduled + 1)


class BlockLeaked(BlockGroup):
    def _push(self, blocks):
        super()._push(blocks[blocks % 7 > 0])


class BlockFreedTwice(BlockGroup):
    def release(self, row):
        self.first_R[row] = 0  # blocks behind the window are already free
        super().release(row)


class OneBlockTooFew(BlockGroup):
    def need(self, rows, upto):
        return super().need(rows, upto - 1)


class SlidePastTheStep(Scheduler):
    """Frees what the *next* step cannot read, and hands it to another row of this step."""

    def _make_room(self, rows, counts):
        rows, counts = super()._make_room(rows, counts)
        self.cache.slide(rows, self.ledger.scheduled_R[rows] + counts)
        return rows, counts


class ReadmittedInFlight(Admissions):
    def _is_complete(self, request):
        return True


class ExtraStepKept(Arrivals):
    def _finish(self, request, stop_token):
        super()._finish(request, stop_token)
        self._ended = {**getattr(self, "_ended", {}), request.serial: request}

    def _arrive_late(self, serial, index, sampled):
        super()._arrive_late(serial, index, sampled)
        if serial in getattr(self, "_ended", {}):
            self._ended[serial].output.append(int(sampled.ids_S[index]))


class StaleOwner(Scheduler):
    """Gives a late id to whoever sits in the row now."""

    def _commit(self, rows, counts, admitted):
        self.ledger.serial_R[rows] = rows
        return super()._commit(rows, counts, admitted)


class PlaceholderLost(Ledger):
    def _known_length(self, request):
        return super()._known_length(request) - (len(request.output) > 0)


class PreemptedWithoutOutput(Admissions):
    def _enter(self, request, found):
        admission = super()._enter(request, found)
        admission.tokens[len(request.prompt) :] = [0] * len(request.output)
        return admission


class ProgressKept(Ledger):
    def preempt(self, row):
        request, reached = self.occupant(row), int(self.scheduled_R[row])
        super().preempt(row)
        request.seed = reached


class PreemptionKeepsProgress(Scheduler):
    """Re-admits at the old position, as if the cache had survived."""

    def _commit(self, rows, counts, admitted):
        for admission in admitted:
            if admission.request.seed:
                at = np.flatnonzero(rows == admission.row)
                reached = min(admission.request.seed, counts[at][0] - 1)
                self.ledger.scheduled_R[admission.row] = reached
                counts[at] -= reached
        return super()._commit(rows, counts, admitted)


class PlanAliasesState(Scheduler):
    def plan(self):
        plan = super().plan()
        if plan is not None:
            object.__setattr__(plan, "starts_B", self.ledger.scheduled_R[: len(plan.rows_B)])
        return plan


class AbortKeepsBlocks(Ledger):
    def abort(self, request):
        release, self.cache.release = self.cache.release, lambda row: None
        try:
            super().abort(request)
        finally:
            self.cache.release = release


class AbortedSampleComesBack(Ledger):
    """Forgets that a preempted request has a sample on its way when it is aborted."""

    def withdraw(self, request):
        self.waiting.remove(request)


class AbortedRowRunsOn(Ledger):
    def abort(self, request):
        if request.serial not in self.serial_R:
            super().abort(request)
        else:
            request.finish_reason = "abort"


class AbortedStaysQueued(Ledger):
    def withdraw(self, request):
        self.away.pop(request.serial, None)


class StopStringUnseenWhileAway(Arrivals):
    """Does not look at the token of a request that was preempted meanwhile."""

    def _arrive_late(self, serial, index, sampled):
        request = self.ledger.away.get(serial)
        if request is not None:
            kept, request.transcript = request.transcript, None
            super()._arrive_late(serial, index, sampled)
            request.transcript = kept


class HolderIgnored(SharedGroup):
    """Gives a block away when the first of its holders leaves."""

    def _push(self, blocks):
        self.holders_N[blocks] = 1
        super()._push(blocks)


class HolderNotCounted(SharedGroup):
    def attach(self, row, first, blocks):
        super().attach(row, first, blocks)
        self.holders_N[blocks] = 1


class AttachedStaysIdle(SharedGroup):
    """Evicts a block that was found by a row meanwhile."""

    def attach(self, row, first, blocks):
        idle = [block for block in blocks if block in self._idle]
        super().attach(row, first, blocks)
        self._idle.update(dict.fromkeys(idle))


class EvictedKeepsItsName(SharedGroup):
    def _evict(self):
        block = next(iter(self._idle))
        digest = self._digests[block]
        super()._evict()
        self._named[digest] = block
        return block


class NameIgnoresWhatLiesBefore(Prefixes):
    def _digests(self, request, count):
        size = self.block_size
        return [str(request.known[i * size : (i + 1) * size]).encode() for i in range(count)]


class NameOfSampledIds(Prefixes):
    """Names blocks of a forced request by what it sampled, not by what it was fed."""

    def _digests(self, request, count):
        forced, request.forced = request.forced, None
        try:
            return super()._digests(request, min(count, len(request.known) // self.block_size))
        finally:
            request.forced = forced

    def name(self, row, request, begin, end):
        super().name(row, request, begin, min(end, len(request.prompt) + len(request.output)))


class NamedBeforeComputed(Prefixes):
    """Names the whole prompt with its first chunk."""

    def name(self, row, request, begin, end):
        super().name(row, request, begin, max(end, len(request.prompt)))


class NamedOneTokenEarly(Prefixes):
    """Names a block whose last position holds a sample that no step has computed."""

    def name(self, row, request, begin, end):
        super().name(row, request, begin, min(end + 1, len(request.known)))


class WindowNotCovered(Prefixes):
    """Takes the longest prefix of the full group, whatever is left behind the windows."""

    def _longest(self, known):
        return max((n for n in range(len(known[0]) + 1) if None not in known[0][:n]), default=0)


class WholePromptFound(Prefixes):
    """Leaves no token to compute."""

    def find(self, request, length):
        return super().find(request, length + 1)


class FoundEntriesNotSent(Scheduler):
    def _commit(self, rows, counts, admitted):
        held, self.cache.held = self.cache.held, lambda rows: self.cache_held(held, rows)
        try:
            return super()._commit(rows, counts, admitted)
        finally:
            self.cache.held = held

    def cache_held(self, held, rows):
        return held(rows[:0])


class TablesOffTheStream(FakeDevice):
    def launch(self, plan):
        self.admit(plan)
        self.update_tables(plan)
        return super().launch(plan)

    def execute_next(self):
        plan = self.queue[0].plan
        for admission in plan.admitted:
            self.reset_state(admission.row)
        admitted, self.admit = self.admit, lambda plan: None
        updated, self.update_tables = self.update_tables, lambda plan: None
        try:
            super().execute_next()
        finally:
            self.admit, self.update_tables = admitted, updated


class StateNotReset(FakeDevice):
    def reset_state(self, row):
        self.states.setdefault(row, 0)


class StateOfAnotherRow(FakeDevice):
    """Keeps states by the place in the batch, which changes as rows come and go."""

    def state_row(self, row):
        return self.batch.index(row) + 1


class ChunkBoundaryLost(FakeDevice):
    """Begins every chunk of a prompt with an empty state."""

    def begin_chunk(self, row, start):
        is_prefill = len(self.tokens[row]) > start + 1
        if is_prefill:
            self.states[row] = 0


class StateNotResetAfterPreemption(FakeDevice):
    """Zeroes the state of a request that is new, and not of one that is computed again."""

    def admit(self, plan):
        kept = {a.row: self.states.get(a.row, 0) for a in plan.admitted if a.request.output}
        super().admit(plan)
        self.states.update(kept)


class ForcedIdOverwritten(FakeDevice):
    def admit(self, plan):
        super().admit(plan)
        self.frozen.update({admission.row: False for admission in plan.admitted})


MUTATIONS = {
    "window freed one token early": Parts(group=WindowFreedOneTokenEarly),
    "slide past the queries of the step": Parts(scheduler=SlidePastTheStep),
    "admitted again while a sample is in flight": Parts(admissions=ReadmittedInFlight),
    "extra step after the end kept": Parts(arrivals=ExtraStepKept),
    "table changes applied at launch, not in stream order": Parts(device=TablesOffTheStream),
    "state of a row not reset on admission": Parts(device=StateNotReset),
    "state of a row not reset after a preemption": Parts(device=StateNotResetAfterPreemption),
    "state of another row": Parts(device=StateOfAnotherRow),
    "state lost at the boundary of a chunk": Parts(device=ChunkBoundaryLost),
    "host feeds its last known id instead of the device's": Parts(ledger=PlaceholderLost),
    "block leaked on release": Parts(group=BlockLeaked),
    "block freed twice": Parts(group=BlockFreedTwice),
    "block table one entry short": Parts(group=OneBlockTooFew),
    "late id given to the row's new owner": Parts(scheduler=StaleOwner),
    "output lost in a preemption": Parts(admissions=PreemptedWithoutOutput),
    "cache trusted after a preemption": Parts(ledger=ProgressKept, scheduler=PreemptionKeepsProgress),
    "plan shares memory with the scheduler": Parts(scheduler=PlanAliasesState),
    "forced id overwritten by the sample": Parts(device=ForcedIdOverwritten),
    "abort keeps the blocks": Parts(ledger=AbortKeepsBlocks),
    "abort lets the row run on": Parts(ledger=AbortedRowRunsOn),
    "abort leaves a request in the queue": Parts(ledger=AbortedStaysQueued),
    "aborted while away, its sample comes back": Parts(ledger=AbortedSampleComesBack),
    "stop string not seen in a late token": Parts(arrivals=StopStringUnseenWhileAway),
    "shared block freed with its first holder": Parts(shared_group=HolderIgnored),
    "second holder not counted": Parts(shared_group=HolderNotCounted),
    "block evicted under its new holder": Parts(shared_group=AttachedStaysIdle),
    "evicted block found by its old name": Parts(shared_group=EvictedKeepsItsName),
    "block named without what lies before it": Parts(prefixes=NameIgnoresWhatLiesBefore),
    "block named by sampled ids where others were fed": Parts(prefixes=NameOfSampledIds),
    "block named before it is computed": Parts(prefixes=NamedBeforeComputed),
    "block named one token early": Parts(prefixes=NamedOneTokenEarly),
    "prefix taken whose window is gone": Parts(prefixes=WindowNotCovered),
    "whole prompt taken from the cache": Parts(prefixes=WholePromptFound),
    "device not told of found blocks": Parts(scheduler=FoundEntriesNotSent),
}


def check_all(parts: Parts) -> None:
    for seed in SEEDS:
        check(seed, parts)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught(name):
    with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
        check_all(MUTATIONS[name])
