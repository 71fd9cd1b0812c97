"""A device that executes plans lazily, in stream order, and keeps tokens, tables and state on its side only.

A generated token is a hash of the row's recurrent state and of every cache entry that the query may read. An
entry is a hash of its token and of the entry before it, which is read from the cache: like a real one it
tells all that lies before it. A block that is reused too early, shared with the wrong row, a window that is
freed too far, a lost placeholder or a bad preemption therefore changes tokens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from fastkernels.engine.core.admission import Admissions
from fastkernels.engine.core.arrivals import Arrivals
from fastkernels.engine.core.cache import BlockCache, BlockGroup
from fastkernels.engine.core.ledger import Ledger
from fastkernels.engine.core.plan import Plan, Sampled
from fastkernels.engine.core.prefix_cache import Prefixes, SharedGroup
from fastkernels.engine.core.request import Request
from fastkernels.engine.core.sampling_params import SamplingParams
from fastkernels.engine.core.scheduler import Scheduler
from fastkernels.engine.core.transcript import Transcript
from tests.forecasts import NobodyGrows

VOCABULARY = 97


def mix(*values: int) -> int:
    result = 1469598103
    for value in values:
        result = (result ^ (value + 0x9E37)) * 1099511 % (1 << 31)
    return result


def letters(ids: list[int]) -> str:
    """A text with few different letters, so that stop strings occur."""
    return "".join("abc"[token % 3] for token in ids)


def sequential(request: Request, windows: list[int | None], has_state: bool = True) -> list[int]:
    """The ids that a request must give: one sequence, no cache, no batching."""
    tokens, sampled = list(request.prompt), []
    while len(sampled) < request.max_tokens:
        state, entries = 0, []
        for position, token in enumerate(tokens):
            state = mix(state, token) if has_state else 0
            entries.append(mix(token, position, entries[-1] if entries else 0))
        last, result = len(tokens) - 1, state
        for window in windows:
            for position in range(max(0, last - (window or last + 1) + 1), last + 1):
                result = mix(result, entries[position])
        sampled.append(result % VOCABULARY)
        tokens.append(sampled[-1] if request.forced is None else request.forced[len(sampled) - 1])
        if sampled[-1] in request.stop_ids or _has_stop_string(request, sampled):
            break
    return sampled


def _has_stop_string(request: Request, sampled: list[int]) -> bool:
    params, text = request.sampling, letters(sampled)
    if request.transcript is None or len(sampled) <= params.min_tokens:
        return False
    # One that ends with an earlier token has passed unseen, below min_tokens.
    return any(text.endswith(stop) for stop in params.stop_strings)


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
    has_state: bool = True  # a recurrent state needs every token: prefixes cannot be skipped
    batch: list[int] = field(default_factory=list)  # rows of the step that is executed
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
        self.batch = plan.rows_B.tolist()
        spans = list(zip(self.batch, plan.starts_B.tolist(), plan.counts_B.tolist()))
        for row, start, count in spans:  # every row writes its entries before any row reads
            for position in range(start, start + count):
                for g in range(len(self.groups)):
                    before = self.entries[self.address(g, row, position - 1)] if position else 0
                    entry = mix(self.tokens[row][position], position, before)
                    self.entries[self.address(g, row, position)] = entry
        ids = []
        for (row, start, count), is_sampled in zip(spans, plan.samples_B):
            result = 0
            self.begin_chunk(row, start)
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

    def begin_chunk(self, row: int, start: int) -> None:
        """The state of a row is what its last chunk left."""

    def state_row(self, row: int) -> int:
        """Where the state of a row lies."""
        return row

    def update_tables(self, plan: Plan) -> None:
        for g, diff in enumerate(plan.tables):
            for row, index, block in zip(diff.rows.tolist(), diff.indices.tolist(), diff.blocks.tolist()):
                self.tables[g, row][index] = block

    def attend(self, row: int, position: int) -> int:
        result, at = 0, self.state_row(row)
        if self.has_state:
            result = self.states[at] = mix(self.states.get(at, 0), self.tokens[row][position])
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
    shared_group: type[SharedGroup] = SharedGroup
    prefixes: type[Prefixes] = Prefixes
    ledger: type[Ledger] = Ledger
    admissions: type[Admissions] = Admissions
    scheduler: type[Scheduler] = Scheduler
    arrivals: type[Arrivals] = Arrivals
    device: type[FakeDevice] = FakeDevice


@dataclass
class Trial:
    scheduler: Scheduler
    arrivals: Arrivals
    device: FakeDevice
    requests: list[Request]
    windows: list[int | None]
    rng: np.random.Generator
    abort_rate: float  # chance of an abort after a step
    aborted: set[int] = field(default_factory=set)


def draw_trial(seed: int, parts: Parts) -> Trial:
    """A random engine and random requests, small enough to preempt, chunk, slide and run out of rows; every
    other one shares prefixes, and one in ten has states alone."""
    rng = np.random.default_rng(seed)
    is_shared, has_blocks = seed % 2 == 1, seed % 10 != 4
    window = int(rng.choice([3, 5, 9]))
    max_rows, max_len = int(rng.integers(1, 8)), 40
    full, local = int(rng.integers(10, 26)), int(rng.integers(8, 32))
    if is_shared:
        groups = [
            parts.shared_group(max_rows + 1, max_len, full + 10, 3),
            parts.shared_group(max_rows + 1, max_len, local + 6, 3, window),
        ]
        prefixes = parts.prefixes(groups)
    else:
        groups = [
            parts.group(max_rows + 1, max_len, full, 4),
            parts.group(max_rows + 1, max_len, local, 2, window),
        ]
        groups = groups if has_blocks else []
        prefixes = None
    scheduler = parts.scheduler(
        BlockCache(groups), max_rows, max_len, max_tokens=int(rng.integers(2, 24)), prefixes=prefixes
    )
    scheduler.ledger.__class__ = parts.ledger
    scheduler.admissions.__class__ = parts.admissions
    if seed % 8:
        scheduler.ledger.lengths = NobodyGrows()
    windows = [group.window for group in groups]
    common = rng.integers(0, VOCABULARY, 20).tolist()
    requests: list[Request] = []
    for serial in range(int(rng.integers(1, 14))):
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 21))).tolist()
        if is_shared:
            prompt = _begin_alike(rng, prompt, common, requests, windows)
        requests.append(_draw_request(rng, serial, prompt))
    abort_rate = float(rng.choice([0.0, 0.1, 0.3]))
    device = parts.device(groups, has_state=not is_shared)
    return Trial(scheduler, parts.arrivals(scheduler.ledger), device, requests, windows, rng, abort_rate)


def _begin_alike(
    rng: np.random.Generator,
    prompt: list[int],
    common: list[int],
    earlier: list[Request],
    windows: list[int | None],
) -> list[int]:
    """A prompt that begins as others do, holds a part of theirs elsewhere, or goes on from an answer."""
    kept, kind = int(rng.integers(0, len(prompt))), rng.random()
    if kind < 0.4:
        return common[:kept] + prompt[kept:]
    if kind < 0.6:
        return common[3 : 3 + kept] + prompt[kept:]
    if kind < 0.9 and earlier:
        asked = earlier[int(rng.integers(len(earlier)))]
        return [*asked.prompt, *sequential(asked, windows, has_state=False), *prompt[:2]][:22]
    return prompt


def _draw_request(rng: np.random.Generator, serial: int, prompt: list[int]) -> Request:
    max_tokens = int(rng.integers(1, 17))
    is_forced = rng.random() < 0.2
    forced = rng.integers(0, VOCABULARY, max_tokens).tolist() if is_forced else None
    stop_ids = tuple(rng.integers(0, VOCABULARY, int(rng.integers(1, 9))).tolist())
    has_stop_ids, has_stops = rng.random(2) < (0.7, 0.3)
    params = SamplingParams()
    if has_stops and not is_forced:
        stop = "".join(rng.choice(["a", "b", "c"], int(rng.integers(1, 4))))
        params = SamplingParams(stop=stop, min_tokens=int(rng.integers(0, 5)))
    return Request(
        serial,
        prompt,
        params,
        seed=0,
        max_tokens=max_tokens,
        stop_ids=stop_ids if has_stop_ids and not is_forced else (),
        forced=forced,
        transcript=Transcript(letters, params.stop_strings, params.min_tokens) if params.stop else None,
    )


def serve(trial: Trial, ahead: int = 1, max_steps: int = 2000) -> dict[int, list[int]]:
    """Run to the end with `ahead` steps in flight while the next is planned; requests arrive and are aborted
    meanwhile. The output of each finished request by serial."""
    flying: deque[Flight] = deque()
    finished: dict[int, list[int]] = {}
    coming, there = deque(trial.requests), []
    for _ in range(max_steps):
        while coming and (not there or trial.rng.random() < 0.7):
            assert trial.scheduler.fits(coming[0].limit)
            trial.scheduler.add(coming[0])
            there.append(coming.popleft())
        if trial.scheduler.ledger.is_idle and not flying and not coming:
            return finished
        plan = trial.scheduler.plan()
        assert plan is not None or flying or coming, "stuck: nothing to launch and nothing in flight"
        if plan is not None:
            flying.append(trial.device.launch(plan))
        if flying and (plan is None or len(flying) > ahead):
            flight = flying.popleft()
            trial.arrivals.retire(flight.plan, flight.result())
        for request in trial.arrivals.finished():
            assert request.serial not in finished, "finished twice"
            assert request.serial not in trial.aborted, "finished after it was aborted"
            finished[request.serial] = request.output
        if there and trial.rng.random() < trial.abort_rate:
            _abort(trial, there[int(trial.rng.integers(len(there)))])
    raise AssertionError("the engine does not come to an end")


def _abort(trial: Trial, request: Request) -> None:
    ledger = trial.scheduler.ledger
    if request.finish_reason is None:
        trial.aborted.add(request.serial)
    ledger.abort(request)
    assert request.serial not in ledger.serial_R, "holds a row"
    assert request not in ledger.waiting, "waits for a row"


def check(seed: int, parts: Parts) -> Trial:
    """Serve a random trial, compare every token with the sequential reference, and see that nothing leaks."""
    trial = draw_trial(seed, parts)
    finished = serve(trial, ahead=(1, 0, 1, 3)[seed // 2 % 4])
    ledger = trial.scheduler.ledger
    for request in trial.requests:
        expected = sequential(request, trial.windows, trial.device.has_state)
        if request.serial in trial.aborted:
            assert request.serial not in finished
            expected = expected[: len(request.output)]
        else:
            assert finished[request.serial] is request.output
        assert request.output == expected, f"seed {seed}, {request.serial}"
    for group in trial.scheduler.cache.groups:
        free = group._free[: group._num_stacked].tolist()
        if isinstance(group, SharedGroup):
            assert not group.holders_N.any(), f"seed {seed}: a block without a row is held"
            assert set(group._idle) == set(group._digests) == set(group._named.values())
            free += group._idle
        assert sorted(free) == list(range(1, group.num_blocks)), f"seed {seed}: blocks leaked or freed twice"
    assert sorted(ledger.free_rows) == list(range(1, len(ledger.serial_R))), f"seed {seed}: rows leaked"
    assert not ledger.away, f"seed {seed}: somebody waits for a sample"
    return trial
