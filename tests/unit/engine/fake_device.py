"""A device that executes plans lazily, in stream order, and keeps tokens, tables and state on its side only.

A generated token is a hash of the row's recurrent state and of every cache entry that the query may read. A
block that is reused too early, a window that is freed too far, a lost placeholder or a bad preemption
therefore changes tokens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from fastkernels.engine.cache import BlockCache, BlockGroup
from fastkernels.engine.plan import Plan, Sampled
from fastkernels.engine.requests import Request, SamplingParams
from fastkernels.engine.scheduler import Scheduler

VOCABULARY = 97


def mix(*values: int) -> int:
    result = 1469598103
    for value in values:
        result = (result ^ (value + 0x9E37)) * 1099511 % (1 << 31)
    return result


def sequential(request: Request, windows: list[int | None]) -> list[int]:
    """The ids that a request must give: one sequence, no cache, no batching."""
    tokens, sampled = list(request.prompt), []
    while len(sampled) < request.max_tokens:
        state = 0
        for token in tokens:
            state = mix(state, token)
        last, result = len(tokens) - 1, state
        for window in windows:
            for position in range(max(0, last - (window or last + 1) + 1), last + 1):
                result = mix(result, mix(tokens[position], position))
        sampled.append(result % VOCABULARY)
        tokens.append(sampled[-1] if request.forced is None else request.forced[len(sampled) - 1])
        if sampled[-1] in request.stop_ids:
            break
    return sampled


@dataclass
class Flight:
    """A launched step; `result` executes the stream up to it."""

    device: FakeDevice
    plan: Plan
    sampled: Sampled | None = None

    def result(self) -> Sampled:
        while self.sampled is None:
            self.device.execute_next()
        return self.sampled


@dataclass
class FakeDevice:
    groups: list[BlockGroup]
    queue: deque[Flight] = field(default_factory=deque)
    tokens: dict[int, dict[int, int]] = field(default_factory=dict)
    frozen: dict[int, bool] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    tables: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    entries: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def launch(self, plan: Plan) -> Flight:
        flight = Flight(self, plan)
        self.queue.append(flight)
        return flight

    def execute_next(self) -> None:
        flight = self.queue.popleft()
        plan = flight.plan
        self.admit(plan)
        self.update_tables(plan)
        spans = list(zip(plan.rows_B.tolist(), plan.starts_B.tolist(), plan.counts_B.tolist()))
        for row, start, count in spans:  # every row writes its entries before any row reads
            for position in range(start, start + count):
                for g in range(len(self.groups)):
                    self.entries[self.address(g, row, position)] = mix(self.tokens[row][position], position)
        ids = []
        for (row, start, count), is_sampled in zip(spans, plan.samples_B):
            result = 0
            for position in range(start, start + count):
                result = self.attend(row, position)
            if is_sampled:
                ids.append(result % VOCABULARY)
                if not self.frozen[row]:
                    self.tokens[row][start + count] = ids[-1]
        flight.sampled = Sampled(np.array(ids, np.int64))

    def admit(self, plan: Plan) -> None:
        for admission in plan.admitted:
            self.tokens[admission.row] = dict(enumerate(admission.tokens))
            self.frozen[admission.row] = admission.request.forced is not None
            self.reset_state(admission.row)
            for g in range(len(self.groups)):
                self.tables[g, admission.row] = {}

    def reset_state(self, row: int) -> None:
        self.states[row] = 0

    def update_tables(self, plan: Plan) -> None:
        for g, diff in enumerate(plan.tables):
            for row, index, block in zip(diff.rows.tolist(), diff.indices.tolist(), diff.blocks.tolist()):
                self.tables[g, row][index] = block

    def attend(self, row: int, position: int) -> int:
        self.states[row] = mix(self.states[row], self.tokens[row][position])
        result = self.states[row]
        for g, group in enumerate(self.groups):
            window = group.window or position + 1
            for key in range(max(0, position - window + 1), position + 1):
                result = mix(result, self.entries[self.address(g, row, key)])
        return result

    def address(self, g: int, row: int, position: int) -> tuple[int, int, int]:
        size = self.groups[g].block_size
        return g, self.tables[g, row][position // size], position % size


@dataclass
class Parts:
    """The classes under test; a mutation replaces one of them."""

    group: type[BlockGroup] = BlockGroup
    scheduler: type[Scheduler] = Scheduler
    device: type[FakeDevice] = FakeDevice


@dataclass
class Trial:
    scheduler: Scheduler
    device: FakeDevice
    requests: list[Request]
    windows: list[int | None]


def draw_trial(seed: int, parts: Parts) -> Trial:
    """A random engine and random requests, small enough to preempt, chunk, slide and run out of rows."""
    rng = np.random.default_rng(seed)
    window = int(rng.choice([3, 5, 9]))
    max_rows, max_len = int(rng.integers(1, 8)), 40
    groups = [
        parts.group(max_rows + 1, max_len, int(rng.integers(10, 26)), 4),
        parts.group(max_rows + 1, max_len, int(rng.integers(8, 32)), 2, window),
    ]
    scheduler = parts.scheduler(BlockCache(groups), max_rows, max_len, max_tokens=int(rng.integers(2, 24)))
    requests = [_draw_request(rng, serial) for serial in range(int(rng.integers(1, 14)))]
    for request in requests:
        assert scheduler.fits(request.limit)
        scheduler.add(request)
    return Trial(scheduler, parts.device(groups), requests, [group.window for group in groups])


def _draw_request(rng: np.random.Generator, serial: int) -> Request:
    prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 21))).tolist()
    max_tokens = int(rng.integers(1, 17))
    is_forced = rng.random() < 0.2
    forced = rng.integers(0, VOCABULARY, max_tokens).tolist() if is_forced else None
    stop_ids = (
        tuple(rng.integers(0, VOCABULARY, int(rng.integers(1, 9))).tolist()) if rng.random() < 0.7 else ()
    )
    return Request(
        serial,
        prompt,
        SamplingParams(),
        seed=0,
        max_tokens=max_tokens,
        stop_ids=() if is_forced else stop_ids,
        forced=forced,
    )


def serve(trial: Trial, ahead: int = 1, max_steps: int = 2000) -> dict[int, list[int]]:
    """Run to the end with `ahead` steps in flight while the next is planned; the output of each request by
    serial."""
    flying: deque[Flight] = deque()
    finished: dict[int, list[int]] = {}
    for _ in range(max_steps):
        if trial.scheduler.is_idle and not flying:
            return finished
        plan = trial.scheduler.plan()
        assert plan is not None or flying, "stuck: nothing to launch and nothing in flight"
        if plan is not None:
            flying.append(trial.device.launch(plan))
        if plan is None or len(flying) > ahead:
            flight = flying.popleft()
            trial.scheduler.retire(flight.plan, flight.result())
        for request in trial.scheduler.collect():
            assert request.serial not in finished, "finished twice"
            finished[request.serial] = request.output
    raise AssertionError("the engine does not come to an end")


def check(seed: int, parts: Parts) -> int:
    """Serve a random trial, compare every token with the sequential reference, and see that nothing leaks."""
    trial = draw_trial(seed, parts)
    finished = serve(trial, ahead=(1, 0, 1, 3)[seed % 4])
    for request in trial.requests:
        assert finished[request.serial] == sequential(request, trial.windows), (
            f"seed {seed}, {request.serial}"
        )
    for group in trial.scheduler.cache.groups:
        free = group._free[: group.num_free].tolist()
        assert sorted(free) == list(range(1, group.num_blocks)), f"seed {seed}: blocks leaked or freed twice"
    rows = trial.scheduler._free_rows
    assert sorted(rows) == list(range(1, len(trial.scheduler.occupants))), f"seed {seed}: rows leaked"
    return trial.scheduler.num_preemptions
