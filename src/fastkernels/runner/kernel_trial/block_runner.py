"""How a call is timed: one block is baseline A, candidate C and baseline A' on the same fresh inputs.

On a GPU, where calls can be captured:

    size       A call of a few microseconds cannot be timed alone. Each side captures the same number of
               calls, up to 64 (measure/chain.py): a chain, whose links have their own module, inputs and
               results. A launch runs all links, one after another in one CUDA graph.
    order      The sides take turns in an order drawn anew for each block, and so do the links of the chain.
               Nobody knows before what comes next. While one side has its turn, the others are stopped.
    launch     The worker enqueues its graph on a device that waits for a word of the judge's, and is stopped.
               So launches take no time that counts, and no process works beside the call. Then the judge
               brings the inputs to where the links read them, makes the L2 cache cold, and says the word
               (worker/call_path.py, transfer/gpu_hold.py).
    duration   Two events in the worker surround the chain. What they read with nothing between them was
               measured before a candidate was imported, and is taken off (`overhead_ns`); the rest divided by
               the number of links is the reading (worker/worker_handle.py).
    window     Two events of the judge's own surround the same work. What they hold beyond the duration
               must be alike on all sides, or the duration is not believed (claim_checks.py).
    results    The judge copies them while the worker is stopped, and compares every link's (referee.py).

A side that cannot be captured puts all into the contract `eager`: one call a turn, held and timed likewise.
On a CPU it is `host`: the worker's clock surrounds one call, and the judge's window also holds a request, an
answer and copies of inputs and results.

sampling.py decides which blocks there are, and when they are enough. What goes wrong in a block comes back as
a verdict: the candidate's for C, INVALID_BASELINE for A and A'. Tensors have the link of a chain as their
first dimension.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor

import torch

from fastkernels.judge.verdict import Verdict
from fastkernels.loader import views
from fastkernels.loader.inputs import draw_links
from fastkernels.measure import unused
from fastkernels.measure.chain import ChainPlan, of_ranks
from fastkernels.records import Case, Failure, TensorSpec
from fastkernels.runner.inside import flags
from fastkernels.runner.kernel_trial import claim_checks
from fastkernels.runner.kernel_trial.bench import Bench, Outcome
from fastkernels.runner.ranks.late_rank import Late
from fastkernels.runner.transfer.shared_memory import Arena
from fastkernels.runner.worker.gpu_idle_check import GpuIdleCheck
from fastkernels.runner.worker.pool import WorkerDied
from fastkernels.runner.worker.reading import Reading, of_links
from fastkernels.runner.worker.worker_calls import Captured, Trouble, baseline_verdict, verdict_of
from fastkernels.runner.worker.worker_handle import WorkerHandle

_PARAMETER = "param."
_MOST_CHARACTERS = 200
_LATE_S = 4e-3  # of a late rank's inputs, after the word to begin: the others have begun
# Of turns on a GPU these begin with a look whether it stands still, drawn in secret: of a baseline's right
# behind the candidate's, so that what it leaves there in every turn cannot be overlooked, and of its others.
# Of the candidate's as many as of a baseline's in all: a turn may be another behind a look.
_LOOK_SHARE_BEHIND, _LOOK_SHARE, _LOOK_SHARE_OWN = 1 / 2, 1 / 16, 1 / 4


class BlockRunner:
    """Use `open`, perhaps `capture`, then `refill` and `block` in turn; `close` at the end, whatever
    happened.
    """

    def __init__(
        self,
        bench: Bench,
        case: Case,
        specs: dict[str, TensorSpec],
        mutable: Set[str],
        handles: tuple[WorkerHandle, WorkerHandle, WorkerHandle],
        layers: Sequence[str],
        implementations: dict[str, str],
        outcome: Outcome,
        chain: ChainPlan,
        base_layers: Sequence[str] = (),
    ) -> None:
        """`handles`: A, C, A'. `layers` and `implementations` are the candidate's, `base_layers` lie over the
        baseline in A and A'; `mutable`: arguments that a call may write; `chain`: what `capture` captures, or
        a group's ranks. Contract, capture, links and what the baseline ran are noted in `outcome`.
        """
        self._bench, self._case, self._specs, self._mutable = bench, case, specs, mutable
        self.a, self.c, self.a2 = handles
        self._layers, self._implementations, self._outcome = layers, implementations, outcome
        self._base_layers = base_layers
        self._stored = views.stored(specs)
        self._has_views, self._is_captured, self.strided = views.are_in(specs), False, False
        self._inbox: Arena | None = None
        self._chain = chain
        self.plan = of_ranks(case.ranks)  # until a chain is captured
        self.distribution = "normal"
        use = bench.sole_use if case.timed else None
        self.idle_check = None if use is None else GpuIdleCheck(use)
        self._last: WorkerHandle | None = None  # whose turn was over last
        self.inputs = self._draw("normal", parameters=True)
        self.strided = self._has_views  # packed inputs come next: what is wrong with them is not their layout
        self._arguments = [name for name in self._stored if not name.startswith(_PARAMETER)]
        self.has_lengths = any(spec.draw.startswith("step.") for spec in specs.values())

    @property
    def ranks(self) -> int:
        return self._case.ranks

    @property
    def is_held(self) -> bool:
        """Whether the judge holds the device of what is timed (worker/call_path.py)."""
        return self._bench.device == "cuda"

    @property
    def layouts(self) -> list[list[int] | None]:
        """Of a captured chain the links with each layout of the inputs; None: of calls that take turns."""
        if not self._has_views:
            return [None]
        return [*views.alternating(self.plan.links)] if self._is_captured else [None, None]

    @property
    def everybody(self) -> list[WorkerHandle]:
        return [self.a, self.c, self.a2]

    def open(self) -> Verdict | None:
        """All sides on the case, with room for results as the baseline's are."""
        self._inbox = inbox = Arena.like(self._stored, self._bench.device, self._boxed)
        inbox.write({name: self.inputs[name] for name in self._stored})
        mine = {name: spec for name, spec in self._stored.items() if name not in self._mutable}
        arguments = {name: spec for name, spec in self._specs.items() if not name.startswith(_PARAMETER)}
        held = self.is_held
        try:
            with self._compiling("baseline A"):
                results = self.a.load(self._case, self._base_layers, {}, inbox, held=held)
            self._outcome.baseline_kernels = self.a.kernels
            self.a.give_boxes(mine, results, self._boxed, arguments)
            if self._case.timed:
                with self._compiling("baseline B"):
                    again = self.a2.load(self._case, self._base_layers, {}, inbox, held=held)
                self.a2.give_boxes(mine, again, self._boxed, arguments)
        except Trouble as trouble:
            return baseline_verdict(trouble)
        try:
            with self._compiling("candidate"):
                self.c.load(
                    self._case,
                    self._layers,
                    self._implementations,
                    inbox,
                    held=held,
                    baseline_s=self.a.first_s,
                )
            if self.c.put_back:
                self._note(flags.told(self.c.put_back))
            self.c.give_boxes(mine, results, self._boxed, arguments)
        except Trouble as trouble:
            return self._blamed(trouble)
        self._memory_is_cleared()
        return None

    @contextlib.contextmanager
    def _compiling(self, who: str) -> Iterator[None]:
        """A case's module is imported and called once: told while it goes on, and counted apart from what is
        measured."""
        self._bench.tell(f"import and first call, {who}")
        begin = time.monotonic()
        try:
            yield
        finally:
            self._outcome.compiling_s += time.monotonic() - begin
            self._bench.tell("")

    def capture(self) -> Verdict | None:
        """Capture a chain everywhere, for the graph contract. One side that cannot be captured puts both
        into `eager`, and the row says which it is: each side is asked in its own process.
        """
        outcome, self.plan, self._is_captured = self._outcome, self._chain, True
        uncaptured = outcome.baseline_kernels
        self.refill("normal")
        answers = self._captured()
        if isinstance(answers, Verdict):
            return answers
        a, a2, c = answers
        outcome.capture = "yes" if c.captured else "no"
        outcome.capture_detail = None if c.captured else _short(c.detail)
        outcome.baseline_capture = "yes" if a.captured and a2.captured else "no"
        if outcome.baseline_capture == "no":
            return self._eager(f"the baseline cannot be captured: {a.detail or a2.detail}")
        if not c.captured:
            return self._eager(f"the candidate cannot be captured: {c.detail}")
        outcome.baseline_kernels, outcome.links = a.kernels, self.plan.links
        # A library that plans on the host cannot be captured: the baseline may not be the fastest.
        for kernel, name in outcome.baseline_kernels.items():
            if name != (eager := uncaptured.get(kernel, name)):
                self._note(f"captured, the baseline's {kernel} is {name}; uncaptured it is {eager}")
        return None

    def settle(self) -> Verdict | None:
        """New single links everywhere, of every rank, for what is not captured."""
        self.plan, self._is_captured = of_ranks(self.ranks), False
        self.refill("normal")
        try:
            for handle in (self.a, self.a2):
                handle.settle(self._given)
        except Trouble as trouble:
            return baseline_verdict(trouble)
        try:
            self.c.settle(self._given)
        except Trouble as trouble:
            return self._blamed(trouble)
        self._memory_is_cleared()
        return None

    def renew(self) -> Verdict | None:
        """New links at other places in memory, with new parameters, on all sides."""
        self.refill("normal")
        unused.give_back(unused.MUCH_BYTES)
        answers = self._captured()
        if isinstance(answers, Verdict):
            return answers
        for answer, status in zip(answers, ("INVALID_BASELINE", "INVALID_BASELINE", "CRASHED"), strict=True):
            if not answer.captured:
                failure = Failure(message=f"captured once, but not again: {answer.detail}")
                return Verdict.failed(status, failure)
        return None

    def _captured(self) -> tuple[Captured, Captured, Captured] | Verdict:
        """Answers of A, A' and C, or what the first of them in trouble deserves. All capture at once: nobody
        is timed, and a chain of 64 links keeps a core busy for 57 ms."""
        with ThreadPoolExecutor(len(self.everybody)) as pool:
            a, c, a2 = (pool.submit(handle.capture, self.plan, self._given) for handle in self.everybody)
        try:
            ours = a.result(), a2.result()
        except Trouble as trouble:
            return baseline_verdict(trouble)
        try:
            answers = *ours, c.result()
        except Trouble as trouble:
            return self._blamed(trouble)
        self._memory_is_cleared()
        return answers

    def refill(
        self,
        distribution: str,
        parameters: bool = True,
        other_lengths: bool = False,
    ) -> None:
        """New values for the next block; `other_lengths`: of requests. Parameters go into the inbox at once,
        for modules that repack them; arguments come with each side's turn. Inputs that have views in the
        model lie so in every second block; in a chain they do in every second link."""
        assert self._inbox is not None
        self.strided = self._has_views and not self.strided
        self.distribution = distribution
        new = self._draw(distribution, parameters, other_lengths)
        self.inputs = {**self.inputs, **new}
        self._inbox.write({name: value for name, value in new.items() if name.startswith(_PARAMETER)})

    def step(self, name: str) -> None:
        """The next block has the inputs of the last one, and in this of integers the numbers after its."""
        spec, last = self._specs[name], self.inputs[name]
        self.inputs = {**self.inputs, name: torch.where(last + 1 < spec.high, last + 1, int(spec.low))}

    @property
    def _given(self) -> dict[str, torch.Tensor]:
        """The arguments of the next call."""
        return {name: self.inputs[name] for name in self._arguments}

    def _late(self, rank: int) -> Late:
        """Of this rank other inputs, such as it might have had, until its own come."""
        inbox, others = self._inbox, self._draw(self.distribution, parameters=False)
        assert inbox is not None
        mixed = {name: self.inputs[name].clone() for name in self._arguments}
        for name, value in mixed.items():
            value[rank] = others[name][rank]
        return Late(rank, _LATE_S, mixed, lambda: inbox.write(self._given), lambda: inbox.write(mixed))

    def inputs_of(self, links: list[int] | None) -> dict[str, torch.Tensor]:
        """The judge's copies, [n, *shape]: of these links, or of all."""
        if links is None:
            return self.inputs
        return {name: of_links(value, links) for name, value in self.inputs.items()}

    def block(
        self,
        order: Sequence[WorkerHandle],
        contract: str,
        fresh: bool,
        parameters: bool,
        echo_parameters: bool,
        links: list[int] | None = None,
        echo_results: bool = False,
        late: int | None = None,
    ) -> dict[int, Reading] | Verdict:
        """One iteration of each side on the same inputs, in this order; readings by id(handle). `links`: of
        a captured chain, that run, or all; in an order that nobody knows before. `late`: the rank of a group
        whose inputs come when the others have begun.

        A side wakes up before its arguments are there, whoever had its turn before: its threads may run, and
        calls that warm it up do run, before the judge's clock does.
        """
        echo = [
            name
            for name in self._stored
            if name not in self._mutable and (echo_parameters or not name.startswith(_PARAMETER))
        ]
        given, coming = self._given, None if late is None else self._late(late)
        running = self._shuffled(links) if contract == "graph" else ()
        found = {}
        for handle in order:
            if verdict := self._left_busy(handle):
                return verdict
            # The baseline copies its inputs out as well, though nobody looks: equal work beside the calls.
            names = [n for n in echo if not (handle.prepares and n.startswith(_PARAMETER))]
            try:
                reading = handle.iterate(
                    given,
                    contract,
                    fresh,
                    parameters,
                    names,
                    echo_results,
                    running,
                    coming,
                    self.strided,
                )
            except Trouble as trouble:
                return self._blamed(trouble) if handle is self.c else baseline_verdict(trouble)
            self._last = handle
            if handle is self.c and (verdict := claim_checks.restless(handle.worker.restless)):
                return verdict  # before another block waits for it as long
            found[id(handle)] = reading
        return found

    def _memory_is_cleared(self) -> None:
        """The driver has done what links leave to it that are gone: nobody's turn begins before."""
        if self.idle_check is not None:
            self.idle_check.wait()

    def _left_busy(self, coming: WorkerHandle) -> Verdict | None:
        """Now and then, while all processes stand still: whether the candidate's GPUs do."""
        if coming is self.c:
            share = _LOOK_SHARE_OWN
        else:
            share = _LOOK_SHARE_BEHIND if self._last is self.c else _LOOK_SHARE
        if self.idle_check is None or not self._bench.draws(share):
            return None
        return claim_checks.restless(self.idle_check.broken(self.c.worker))

    def again(self, reading: Reading) -> dict[str, torch.Tensor] | Verdict:
        """The candidate's results of the call before the last one, as they lie in memory now
        (worker/worker_handle.py)."""
        try:
            return self.c.again(reading)
        except Trouble as trouble:
            return self._blamed(trouble)

    def close(self) -> None:
        for handle in self.everybody:
            handle.unload()
        if self._inbox is not None:
            self._inbox.close()
        if self._bench.device == "cuda":
            unused.give_back()

    def _draw(
        self,
        distribution: str,
        parameters: bool,
        other_lengths: bool = False,
    ) -> dict[str, torch.Tensor]:
        specs = {n: spec for n, spec in self._specs.items() if parameters or not n.startswith(_PARAMETER)}
        seed = self._bench.rng.getrandbits(62)
        drawn = draw_links(
            specs, self._case, seed, self.plan.links_of, distribution, self._bench.device, other_lengths
        )
        layouts = views.in_chain() if self._is_captured else views.of_all(self.strided)
        return drawn | views.laid(specs, drawn, layouts)

    def _shuffled(self, links: list[int] | None) -> list[int]:
        some = range(self.plan.links) if links is None else links
        return self._bench.rng.sample(some, len(some))

    def _eager(self, why: str) -> Verdict | None:
        self._outcome.contract = "eager"
        self._note(why)
        return self.settle()

    def _boxed(self, name: str) -> int:
        """Links of a tensor in the boxes: arguments and results of a chain lie elsewhere
        (transfer/gpu_arguments.py)."""
        plan = self._chain if name.startswith(_PARAMETER) else of_ranks(self.ranks)
        return plan.links_of(name)

    def _note(self, what: str) -> None:
        self._outcome.notes += (f"{self._case.task} {self._case.id}: {what}",)

    def _blamed(self, trouble: Trouble) -> Verdict:
        self._outcome.died = isinstance(trouble.problem, WorkerDied)
        return verdict_of(trouble, forced=bool(self._implementations))


def _short(detail: str) -> str:
    """A candidate's own message on one line: errors of CUDA go on with advice."""
    return " ".join(detail.split())[:_MOST_CHARACTERS]
