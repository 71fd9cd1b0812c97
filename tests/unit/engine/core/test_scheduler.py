"""The scheduler and the cache against a sequential reference, on a device that executes in stream order."""

from __future__ import annotations

import numpy as np
import pytest

from fastkernels.engine.core.admission import UNLIMITED, equal_share
from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.cache import BlockCache, BlockGroup
from fastkernels.engine.core.ledger import Lengths
from fastkernels.engine.core.plan import Sampled
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler
from tests.unit.engine.fake_device import Parts, check


def make(max_rows=4, max_tokens=64, num_blocks=33, block_size=4, max_len=64) -> Scheduler:
    group = BlockGroup(max_rows + 1, max_len, num_blocks, block_size)
    return Scheduler(BlockCache([group]), max_rows, max_len, max_tokens)


def request(serial: int, length: int, max_tokens: int = 4, **kwargs) -> Request:
    return Request(serial, list(range(length)), SamplingParams(), seed=0, max_tokens=max_tokens, **kwargs)


def reply(plan, value: int = 7) -> Sampled:
    return Sampled(np.full(int(plan.samples_B.sum()), value, np.int64))


@pytest.mark.parametrize("chunk", range(4))
def test_tokens_equal_the_sequential_reference(chunk):
    preemptions = aborted = found = 0
    for seed in range(chunk * 100, chunk * 100 + 100):
        trial = check(seed, Parts())
        preemptions += trial.scheduler.ledger.num_preemptions
        aborted += len(trial.aborted)
        found += 0 if trial.scheduler.prefixes is None else trial.scheduler.prefixes.num_found
    assert preemptions > 20, "the configurations no longer preempt, so the test lost its strength"
    assert aborted > 20, "nothing is aborted"
    assert found > 200, "no prefix is found"


def test_prompt_is_chunked_and_mixed_with_decodes():
    scheduler = make(max_tokens=8)
    scheduler.add(request(0, 3))
    scheduler.add(request(1, 20))
    plan = scheduler.plan()
    assert plan.counts_B.tolist() == [3, 5]
    assert plan.samples_B.tolist() == [True, False]
    plan = scheduler.plan()  # run-ahead: the first step has not retired
    assert plan.num_decodes == 1
    assert plan.counts_B.tolist() == [1, 7]
    assert plan.starts_B.tolist() == [3, 5]


def test_last_id_is_sampled_but_never_computed():
    scheduler = make()
    arrivals = Arrivals(scheduler.ledger)
    scheduler.add(request(0, 3, max_tokens=2))
    first, second = scheduler.plan(), scheduler.plan()
    assert scheduler.plan() is None
    arrivals.retire(first, reply(first))
    arrivals.retire(second, reply(second))
    (finished,) = arrivals.finished()
    assert finished.output == [7, 7]
    assert finished.finish_reason == "length"
    assert scheduler.ledger.is_idle


def test_stop_token_drops_the_extra_step():
    scheduler = make()
    arrivals = Arrivals(scheduler.ledger)
    scheduler.add(request(0, 3, max_tokens=9, stop_ids=(5, 7)))
    first, extra = scheduler.plan(), scheduler.plan()
    arrivals.retire(first, reply(first))
    (finished,) = arrivals.finished()
    assert finished.finish_reason == "stop"
    arrivals.retire(extra, reply(extra, 9))
    assert finished.output == [7]
    assert arrivals.finished() == []


def test_many_stop_ids_of_one_request_cost_the_others_nothing():
    scheduler = make()
    arrivals, width = Arrivals(scheduler.ledger), scheduler.ledger.stops_RS.shape
    scheduler.add(request(0, 3, max_tokens=9, stop_ids=range(5, 50_000)))
    scheduler.add(request(1, 3, max_tokens=3))
    for token in (4, 7, 7):
        plan = scheduler.plan()
        arrivals.retire(plan, reply(plan, token))
    assert [done.output for done in arrivals.finished()] == [[4, 7], [4, 7, 7]]
    assert scheduler.ledger.stops_RS.shape == width


def test_who_surely_grows_to_the_limit_gets_room_for_it():
    scheduler = make(num_blocks=17)  # 64 positions, of which one block stays free
    for serial in range(4):
        scheduler.add(request(serial, 8, max_tokens=20))
    assert len(scheduler.plan().admitted) == 2


def test_rows_that_end_before_others_make_room_for_them():
    scheduler = make(num_blocks=17)
    scheduler.add(request(0, 8, max_tokens=20))
    scheduler.add(request(1, 8, max_tokens=2))
    scheduler.add(request(2, 8, max_tokens=20))
    assert len(scheduler.plan().admitted) == 3


def test_requests_that_stop_early_are_expected_to_do_so_again():
    admitted = []
    for share in (0.1, 0.9):
        scheduler = make(num_blocks=17)
        for _ in range(500):
            scheduler.ledger.lengths.learn(used=round(share * 100), allowed=100)
        assert scheduler.ledger.lengths.share == pytest.approx(share, abs=0.01)
        for serial in range(4):
            scheduler.add(request(serial, 8, max_tokens=20, stop_ids=(7,)))
        admitted.append(len(scheduler.plan().admitted))
    assert admitted == [4, 2]


def test_an_end_is_learnt_from_only_where_there_could_have_been_another():
    scheduler = make()
    arrivals = Arrivals(scheduler.ledger)
    for stop_ids in ((), (7,)):
        before = scheduler.ledger.lengths.share
        scheduler.add(request(len(stop_ids), 3, max_tokens=1, stop_ids=stop_ids))
        plan = scheduler.plan()
        arrivals.retire(plan, reply(plan))
        assert (scheduler.ledger.lengths.share > before) == bool(stop_ids)


def test_a_request_alone_enters_however_long_it_may_grow():
    scheduler = make(num_blocks=5)
    scheduler.add(request(0, 8, max_tokens=40))
    assert len(scheduler.plan().admitted) == 1


def test_admission_leaves_the_watermark_free():
    scheduler = make(num_blocks=9)  # 32 positions, of which one block stays free
    for serial in range(3):
        scheduler.add(request(serial, 8, max_tokens=2))
    assert len(scheduler.plan().admitted) == 2


def rows_of_steps(scheduler: Scheduler) -> list[int]:
    """How many rows each step has, until all requests have ended."""
    arrivals, rows = Arrivals(scheduler.ledger), []
    while not scheduler.ledger.is_idle:
        plan = scheduler.plan()
        rows.append(len(plan.rows_B))
        arrivals.retire(plan, reply(plan))
    return rows


def test_a_queue_that_does_not_fit_runs_in_equal_waves():
    scheduler = make(max_rows=8, num_blocks=8 * 2 + 2)
    for serial in range(10):
        scheduler.add(request(serial, 4, max_tokens=4))
    assert rows_of_steps(scheduler) == [5] * 4 + [5] * 4, "7 fit, and 3 would be left over"


def test_a_long_queue_is_not_looked_through_for_each_wave():
    class Queue(list):
        def __iter__(self):
            raise AssertionError("every waiting request was looked at")

    group = BlockGroup(9, 64, 22, 4)
    for max_rows, usable in ((1, 20), (8, 4)):
        queue = Queue(request(serial, 4) for serial in range(100))
        assert equal_share(queue, Lengths(), max_rows, [(group, usable)]) == UNLIMITED


@pytest.mark.parametrize("window", [None, 4])
def test_rows_and_blocks_limit_a_wave(window):
    group = BlockGroup(9, 64, 22, 4, window)
    scheduler = Scheduler(BlockCache([group]), 8, 64, 64)
    for serial in range(9):
        scheduler.add(request(serial, 4, max_tokens=20))
    # 6 blocks each: 3 fit. Behind a window a row holds 3 at most: 6 fit.
    assert max(rows_of_steps(scheduler)) == (3 if window is None else 5)


def test_what_may_end_early_and_what_comes_later_is_not_held_back():
    unequal, stopped, late = (make(max_rows=8, num_blocks=8 * 2 + 2) for _ in range(3))
    for serial in range(10):
        unequal.add(request(serial, 4, max_tokens=4 - serial % 2))
        stopped.add(request(serial, 4, max_tokens=4, stop_ids=(3,)))
        late.add(request(serial, 4, max_tokens=4))
    assert len(unequal.plan().rows_B) == 7
    assert len(stopped.plan().rows_B) == 8
    assert len(late.plan().rows_B) == 5
    late.add(request(10, 4, max_tokens=4))
    assert len(late.plan().rows_B) > 5


def test_a_queue_that_others_left_is_not_held_back():
    scheduler = make(max_rows=8, num_blocks=8 * 2 + 2)
    requests = [request(serial, 4, max_tokens=4) for serial in range(10)]
    for one in requests:
        scheduler.add(one)
    assert len(scheduler.plan().rows_B) == 5
    for one in requests[-3:]:
        scheduler.abort(one)
    assert len(scheduler.plan().rows_B) > 5


@pytest.mark.usefixtures("nobody_grows")
def test_youngest_is_preempted_and_comes_back_with_its_output():
    scheduler = make(num_blocks=5, max_rows=2)  # 16 positions
    arrivals = Arrivals(scheduler.ledger)
    scheduler.add(request(0, 4, max_tokens=8))
    scheduler.add(request(1, 4, max_tokens=8))
    while not scheduler.ledger.num_preemptions:
        plan = scheduler.plan()
        arrivals.retire(plan, reply(plan))
    assert scheduler.ledger.waiting[0].serial == 1
    assert scheduler.ledger.waiting[0].output
    finished = []
    while len(finished) < 2:
        plan = scheduler.plan()
        if plan.admitted:
            assert plan.admitted[0].tokens == [0, 1, 2, 3] + [7] * (len(plan.admitted[0].tokens) - 4)
        arrivals.retire(plan, reply(plan))
        finished += arrivals.finished()
    assert all(done.output == [7] * 8 for done in finished)


def test_forced_ids_are_known_at_admission_and_come_back_after_a_preemption():
    scheduler = make(num_blocks=33)
    arrivals = Arrivals(scheduler.ledger)
    scheduler.add(request(0, 4, max_tokens=3, forced=[9, 8, 6]))
    plan = scheduler.plan()
    assert plan.admitted[0].tokens == [0, 1, 2, 3, 9, 8, 6]
    assert plan.counts_B.tolist() == [4]  # the forced ids go through decode steps all the same
    scheduler.ledger.preempt(plan.admitted[0].row)
    arrivals.retire(plan, reply(plan))
    plan = scheduler.plan()
    assert plan.admitted[0].tokens == [0, 1, 2, 3, 9, 8, 6]
    assert plan.counts_B.tolist() == [5]


def test_fits_says_what_can_never_be_served():
    scheduler = make(num_blocks=5, block_size=4, max_len=64)
    assert scheduler.fits(17)  # 16 cached positions; the last id is never computed
    assert not scheduler.fits(18)
    assert not make(max_len=16).fits(17)


def test_abandon_leaves_an_empty_scheduler():
    scheduler = make()
    for serial in range(6):
        scheduler.add(request(serial, 9))
    scheduler.plan()
    scheduler.ledger.abandon()
    assert scheduler.ledger.is_idle
    assert scheduler.cache.num_free == [32]
    assert scheduler.plan() is None
