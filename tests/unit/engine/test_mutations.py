"""Bugs that engines really have, seeded one at a time: the property test of test_scheduler.py must catch
each."""

from __future__ import annotations

import numpy as np
import pytest

from fastkernels.engine.cache import BlockGroup
from fastkernels.engine.scheduler import Scheduler

from .fake_device import FakeDevice, Parts, check

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
        self.cache.slide(rows, self.scheduled_R[rows] + counts)
        return rows, counts


class ReadmittedInFlight(Scheduler):
    def _is_complete(self, request):
        return True


class ExtraStepKept(Scheduler):
    def _finish(self, request, reason):
        super()._finish(request, reason)
        self._ended = {**getattr(self, "_ended", {}), request.serial: request}

    def _arrive_late(self, serial, index, sampled):
        super()._arrive_late(serial, index, sampled)
        if serial in getattr(self, "_ended", {}):
            self._ended[serial].output.append(int(sampled.ids_S[index]))


class StaleOwner(Scheduler):
    """Gives a late id to whoever sits in the row now."""

    def _commit(self, rows, counts, admitted):
        self.serial_R[rows] = rows
        return super()._commit(rows, counts, admitted)


class PlaceholderLost(Scheduler):
    def _known_length(self, request):
        return super()._known_length(request) - (len(request.output) > 0)


class PreemptedWithoutOutput(Scheduler):
    def _enter(self, request):
        admission = super()._enter(request)
        admission.tokens[len(request.prompt) :] = [0] * len(request.output)
        return admission


class PreemptionKeepsProgress(Scheduler):
    """Re-admits at the old position, as if the cache had survived."""

    def _preempt(self, row):
        request, reached = self.occupants[row], int(self.scheduled_R[row])
        super()._preempt(row)
        request.seed = reached

    def _commit(self, rows, counts, admitted):
        for admission in admitted:
            if admission.request.seed:
                at = np.flatnonzero(rows == admission.row)
                self.scheduled_R[admission.row] = min(admission.request.seed, counts[at][0] - 1)
                counts[at] -= self.scheduled_R[admission.row]
        return super()._commit(rows, counts, admitted)


class PlanAliasesState(Scheduler):
    def plan(self):
        plan = super().plan()
        if plan is not None:
            self._ids = np.resize(getattr(self, "_ids", plan.rows_B), len(plan.rows_B))
            self._ids[:] = plan.starts_B
            object.__setattr__(plan, "starts_B", self.scheduled_R[: len(plan.rows_B)])
        return plan


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


class ForcedIdOverwritten(FakeDevice):
    def admit(self, plan):
        super().admit(plan)
        self.frozen.update({admission.row: False for admission in plan.admitted})


MUTATIONS = {
    "window freed one token early": Parts(group=WindowFreedOneTokenEarly),
    "slide past the queries of the step": Parts(scheduler=SlidePastTheStep),
    "admitted again while a sample is in flight": Parts(scheduler=ReadmittedInFlight),
    "extra step after the end kept": Parts(scheduler=ExtraStepKept),
    "table changes applied at launch, not in stream order": Parts(device=TablesOffTheStream),
    "state of a row not reset on admission": Parts(device=StateNotReset),
    "host feeds its last known id instead of the device's": Parts(scheduler=PlaceholderLost),
    "block leaked on release": Parts(group=BlockLeaked),
    "block freed twice": Parts(group=BlockFreedTwice),
    "block table one entry short": Parts(group=OneBlockTooFew),
    "late id given to the row's new owner": Parts(scheduler=StaleOwner),
    "output lost in a preemption": Parts(scheduler=PreemptedWithoutOutput),
    "cache trusted after a preemption": Parts(scheduler=PreemptionKeepsProgress),
    "plan shares memory with the scheduler": Parts(scheduler=PlanAliasesState),
    "forced id overwritten by the sample": Parts(device=ForcedIdOverwritten),
}


def check_all(parts: Parts) -> None:
    for seed in SEEDS:
        check(seed, parts)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught(name):
    with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
        check_all(MUTATIONS[name])
