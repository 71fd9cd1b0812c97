"""Shared blocks: what is found, what is evicted first, and when names are dropped."""

from __future__ import annotations

import numpy as np
import pytest

from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.cache import BlockCache
from fastkernels.engine.core.plan import Sampled
from fastkernels.engine.core.prefix_cache import Prefixes, SharedGroup
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler
from tests.unit.engine.test_llm import ids, make

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


class Bench:
    """A scheduler that shares prefixes, with blocks of 4 tokens; every sample is the id 7."""

    def __init__(self, num_blocks: int = 33, window: int | None = None, max_rows: int = 4) -> None:
        self.group = SharedGroup(max_rows + 1, 64, num_blocks, 4, window)
        self.prefixes = Prefixes([self.group])
        self.scheduler = Scheduler(BlockCache([self.group]), max_rows, 64, 64, self.prefixes)
        self.arrivals = Arrivals(self.scheduler.ledger)
        self.serial = 0

    def add(self, prompt: list[int], max_tokens: int = 1) -> Request:
        self.serial += 1
        request = Request(self.serial, prompt, SamplingParams(), 0, max_tokens)
        self.scheduler.add(request)
        return request

    def step(self):
        plan = self.scheduler.plan()
        self.arrivals.retire(plan, Sampled(np.full(int(plan.samples_B.sum()), 7, np.int64)))
        return plan

    def serve(self, prompt: list[int], max_tokens: int = 1) -> Request:
        request = self.add(prompt, max_tokens)
        while request.finish_reason is None:
            self.step()
        return request


def test_only_what_is_missing_is_computed():
    bench = Bench()
    bench.serve(list(range(10)))
    request = bench.add([*range(9), 50])
    plan = bench.step()
    assert request.num_cached == 8
    assert (plan.starts_B.tolist(), plan.counts_B.tolist()) == ([8], [2])
    assert plan.tables[0].indices.tolist() == [0, 1, 2], "the device is told of the found blocks as well"


def test_last_token_is_computed_even_if_every_block_is_there():
    bench = Bench()
    bench.serve(list(range(8)))
    assert bench.serve(list(range(8))).num_cached == 4
    assert bench.serve(list(range(9))).num_cached == 8


def test_answer_is_found_by_the_next_turn():
    bench = Bench()
    first = bench.serve([1, 2, 3], max_tokens=10)
    assert first.output == [7] * 10
    second = bench.serve([1, 2, 3, *first.output, 5])
    assert second.num_cached == 12, "the last id of the answer was never computed"


def test_blocks_with_equal_ids_behind_others_are_not_found():
    bench = Bench()
    bench.serve([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert bench.serve([5, 6, 7, 8, 9]).num_cached == 0
    assert bench.serve([0, 2, 3, 4, 5, 6, 7, 8, 9]).num_cached == 0


def test_running_rows_share_and_the_last_one_gives_back():
    bench = Bench()
    prompt = list(range(16))
    first = bench.add(prompt, max_tokens=20)
    bench.step()
    second = bench.add([*prompt, 3], max_tokens=2)
    bench.step()
    assert second.num_cached == 16
    shared = bench.group.table_RN[:, 0].max()
    assert bench.group.holders_N[shared] == 2
    while second.finish_reason is None:
        bench.step()
    assert bench.group.holders_N[shared] == 1
    bench.scheduler.ledger.abort(first)
    assert bench.group.holders_N[shared] == 0
    assert bench.group.num_free == 32


def test_the_longest_unused_goes_first_and_ends_before_beginnings():
    bench = Bench(num_blocks=9)  # 8 blocks
    old, new = list(range(12)), list(range(20, 32))
    bench.serve([*old, 1])  # 3 named blocks and one that is not full
    bench.serve([*new, 1])
    bench.serve([*old, 1])  # used again: now the younger
    bench.serve(list(range(40, 52)))  # 2 unnamed blocks are left for its 3
    lengths = [
        bench.prefixes.find(Request(0, [*p, 1], SamplingParams(), 0, 1), 13).tokens for p in (old, new)
    ]
    assert lengths == [12, 8]


def test_window_needs_only_what_the_next_query_reads():
    bench = Bench(window=6)
    bench.serve(list(range(20)))
    digests = bench.prefixes._digests(Request(0, list(range(20)), SamplingParams(), 0, 1), 5)
    named = bench.group._named
    for digest in digests[:2]:  # as if evicted
        block = named.pop(digest)
        del bench.group._digests[block], bench.group._idle[block]
    request = Request(0, list(range(18)), SamplingParams(), 0, 1)
    found = bench.prefixes.find(request, 18)
    assert (found.tokens, len(found.blocks[0])) == (16, 2)
    short = Request(0, list(range(13)), SamplingParams(), 0, 1)
    assert bench.prefixes.find(short, 13).tokens == 0, "positions 7 .. are read behind 12 tokens"


def test_preempted_request_finds_its_own_blocks():
    bench = Bench()
    request = bench.add(list(range(8)), max_tokens=20)
    for _ in range(6):
        bench.step()
    ledger = bench.scheduler.ledger
    ledger.preempt(int(ledger.running[0]))
    plan = bench.step()
    assert plan.starts_B.tolist() == [12]
    assert request.num_cached == 0, "of its first admission"


def test_forget_makes_all_blocks_plain():
    bench = Bench()
    bench.serve(list(range(20)))
    running = bench.add(list(range(20)), max_tokens=9)
    bench.step()
    bench.prefixes.forget()
    assert bench.prefixes.find(Request(0, list(range(20)), SamplingParams(), 0, 1), 20).tokens == 0
    while running.finish_reason is None:
        bench.step()
    assert bench.group.num_free == 32


def test_groups_share_one_size_of_blocks():
    with pytest.raises(AssertionError, match="one size"):
        Prefixes([SharedGroup(2, 16, 9, 4), SharedGroup(2, 16, 9, 2)])


@pytest.mark.parametrize("reset", ["reset", "failure"])
def test_contents_that_cannot_be_trusted_are_forgotten(reset):
    llm = make(enable_prefix_caching=True, block_size=4)
    prompt = list(range(3, 23))
    first = llm.generate(prompt, GREEDY)
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 16
    if reset == "reset":
        llm.reset_prefix_cache()
    else:

        def fails(module, args):
            raise ArithmeticError("a kernel crashed")

        handle = llm.model.get_submodule("layers.1").register_forward_pre_hook(fails)
        with pytest.raises(ArithmeticError):
            llm.generate(prompt, GREEDY)
        handle.remove()
    again = llm.generate(prompt, GREEDY)
    assert again[0].num_cached_tokens == 0
    assert ids(again) == ids(first)


def test_off_by_default():
    llm = make(block_size=4)
    for _ in range(2):
        assert llm.generate(list(range(3, 23)), GREEDY)[0].num_cached_tokens == 0
    assert llm.stats()["prefix_tokens_asked"] == 0


def test_forced_requests_find_and_leave_the_ids_that_they_were_fed():
    llm, plain = make(enable_prefix_caching=True, block_size=4), make(block_size=4)
    prompt, fed = list(range(3, 13)), list(range(100, 112))
    forced = llm.generate(prompt, GREEDY, forced=[fed])
    assert ids(forced) == ids(plain.generate(prompt, GREEDY, forced=[fed]))
    for longer in ([*prompt, *fed, 9], [*prompt, *ids(forced)[0], 9]):
        output = llm.generate(longer, GREEDY)
        assert ids(output) == ids(plain.generate(longer, GREEDY))
        assert (output[0].num_cached_tokens > 12) == (longer[10:22] == fed)
