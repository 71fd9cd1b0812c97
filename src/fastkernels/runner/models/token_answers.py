"""Models that answer with tokens: greedy runs of exact lengths, compared by teacher forcing."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from fastkernels.nn.config import ConfigReader, text_config
from fastkernels.records import Failure, Size
from fastkernels.registry.schema import Shape, TokenCorrectness
from fastkernels.registry.workloads import TokenWorkload
from fastkernels.runner.models.answers import Comparison
from fastkernels.runner.models.draws import Request, Requests
from fastkernels.runner.models.replies import Forced, Tokens, garbled, parsed, read
from fastkernels.runner.models.sides import Side, SideFailure, SideHandle, Sides
from fastkernels.runner.transfer.arrays import handed
from fastkernels.score import calibrate, timed_tokens
from fastkernels.score.timed_tokens import Said

NOISE_CHUNK: dict[Size, int] = {"tiny": 48, "full": 1024}
TOP_LOGPROBS = 20  # positions keep this many for the KL bound
AUDITED_REQUESTS = 8  # of each workload's timed output, replayed by the baseline; one of each run at least
MAX_NUM_SEQS: dict[Size, int | None] = {"tiny": 32, "full": None}  # None: the engine's own, by its memory
# Of a GPU's memory for each of two engines, and for one alone; the rest is for contexts, graphs and the
# allocator's slack.
SHARED_GPU_FRACTION, WHOLE_GPU_FRACTION = 0.44, 0.88
PROOF_REQUESTS, PROOF_LENS = 4, (8, 24)
Prompts = list[list[int]]


class Asked(NamedTuple):
    """A request: a prompt, and what is beside it."""

    prompt: list[int]
    media: Request


class Kept(NamedTuple):
    """Some requests of a timed run and what the candidate said to them; how much the baseline repeats."""

    inputs: list[Asked]
    said: Prompts
    repeated: float


class TokenAnswers:
    """d = 1 - teacher-forced top-1 agreement with the baseline's own greedy tokens, for each request."""

    side: ClassVar = "fastkernels.runner.models.token_side:TokenSide"

    def __init__(
        self, facts: TokenCorrectness, size: Size, config: Mapping[str, Any], rng: random.Random
    ) -> None:
        self._facts, self._samples, self._rng = facts, facts.samples[size], rng
        self._size: Size = size
        self._prompt = list(facts.prompt.get(size, ()))
        self._media = Requests(facts.media, config, rng)
        self._vocabulary = ConfigReader(text_config(config)).integer("vocab_size")
        self._text_below = facts.text_below.get(size) or self._vocabulary
        self._largest_noise_gap = 0.0
        # Another split of the batch, other chunks of the prompts, PyTorch's own arithmetic in some kernels.
        self.noise_changes: list[dict[str, Any]] = [
            {"max_num_seqs": max(2, self._samples.requests // 2)},
            {"max_num_batched_tokens": NOISE_CHUNK[size]},
            *({"noise": group} for group in facts.noise),
        ]

    def engine(self, workloads: Sequence[TokenWorkload], alone: bool) -> dict[str, Any]:
        longest = self._facts.beside(self._size) + self._samples.input_lens[1]
        return {
            "max_num_seqs": MAX_NUM_SEQS[self._size],
            "max_model_len": max(
                self._facts.positions(self._size, workloads), longest + self._samples.output_len
            ),
            "gpu_memory_utilization": WHOLE_GPU_FRACTION if alone else SHARED_GPU_FRACTION,
        }

    def inputs(self, workload: TokenWorkload) -> list[Asked]:
        return self._drawn(workload.requests, (workload.input_len, workload.input_len), workload.shapes)

    @contextlib.contextmanager
    def given(self, inputs: list[Asked]) -> Iterator[dict[str, Any]]:
        prompts = [one.prompt for one in inputs]
        if not self._facts.media:
            yield {"prompts": prompts}
            return
        with handed([one.media for one in inputs]) as media:
            yield {"prompts": prompts, **media}

    def proof(self) -> list[Asked]:
        return self._drawn(PROOF_REQUESTS, PROOF_LENS, self._samples.shapes)

    def warm_up(self, side: SideHandle, workload: Any) -> None:
        """A whole run, other prompts: after a shorter one the first timed run is slower than the next
        (decision 68), and it is always the baseline's."""
        self.timed(side, self.inputs(workload), workload)

    def timed(self, side: SideHandle, inputs: list[Asked], workload: Any) -> tuple[float, Prompts]:
        return self._run(side, inputs, workload.output_len)

    def amount(self, workload: Any) -> float:
        return workload.requests * workload.output_len if workload.kind == "throughput" else 1

    def kept(self, inputs: list[Asked], baseline: Prompts, candidate: Prompts) -> Kept:
        chosen = self._rng.sample(range(len(inputs)), min(AUDITED_REQUESTS, len(inputs)))
        repeated = statistics.fmean(map(timed_tokens.repeated, baseline))
        return Kept([inputs[i] for i in chosen], [candidate[i] for i in chosen], repeated)

    def audit(self, baseline: SideHandle, runs: Sequence[Kept]) -> list[Said]:
        """The baseline is forced along tokens of the timed runs."""
        each = math.ceil(AUDITED_REQUESTS / len(runs))
        inputs = [one for run in runs for one in run.inputs[:each]]
        said = [tokens for run in runs for tokens in run.said[:each]]
        with self.given(inputs) as given:
            found = read(baseline, Forced, "forced", **given, continuations=said, top=TOP_LOGPROBS)
        return [Said(*text) for text in zip(said, found.argmax, found.top, strict=True)]

    def audited(self, found: list[Said]) -> list[float]:
        doubt = timed_tokens.doubt(chain.from_iterable(self._own_tops), self._largest_noise_gap)
        return [timed_tokens.discrepancy(text, doubt) for text in found]

    def repeated(self, runs: Sequence[Kept]) -> float:
        return statistics.fmean(run.repeated for run in runs)

    def compare(self, sides: Sides, report: Callable[[str], None]) -> Comparison:
        samples = self._samples
        self._forced_inputs = self._drawn(samples.requests, samples.input_lens, samples.shapes)
        report("baseline tokens for teacher forcing")
        baseline = sides.use("baseline")
        _, self._forced_tokens = self._run(baseline, self._forced_inputs, self._samples.output_len)
        answers = {}
        order: tuple[Side, ...] = ("baseline", "candidate")
        for side in order:
            report(f"teacher-forced, {side}")
            answers[side] = self._forced(sides.use(side))
        theirs, ours = (list(map(len, answers[side].top)) for side in order)
        if ours != theirs:
            raise garbled(sides.use("candidate"), "forced", "log-probabilities of other positions")
        tokens, self._own_tops = self._forced_tokens, answers["baseline"].top
        unrelated = zip(tokens, tokens[1:] + tokens[:1])
        return Comparison(
            d=self._discrepancies(answers["candidate"]),
            ruin=[calibrate.token_discrepancy(ids, other) for ids, other in unrelated],
            kl=calibrate.kl_bound(answers["baseline"].top, answers["candidate"].top),
        )

    def again(self, side: SideHandle) -> list[float]:
        found = self._forced(side)
        for text in zip(self._forced_tokens, found.argmax, found.top, strict=True):
            self._largest_noise_gap = max(self._largest_noise_gap, *Said(*text).gaps())
        return self._discrepancies(found)

    def _run(self, side: SideHandle, inputs: list[Asked], output_len: int) -> tuple[float, Prompts]:
        """Seconds from sending the inputs until the judge has all tokens: that they are there is only the
        side's word."""
        with self.given(inputs) as given:
            begin = time.perf_counter()
            side.call("generate", **given, max_tokens=output_len)
            said = side.call("outputs")
            seconds = time.perf_counter() - begin
        tokens = parsed(side, Tokens, "outputs", said).token_ids
        lengths = [len(ids) for ids in tokens]
        if lengths != [output_len] * len(inputs):
            raise SideFailure(
                side.side,
                Failure(
                    message=f"asked for {len(inputs)} x {output_len} tokens, "
                    f"got {len(lengths)} x {sorted(set(lengths))}"
                ),
            )
        if (largest := max(map(max, tokens))) >= self._vocabulary:
            raise garbled(side, "outputs", f"token {largest} of a vocabulary of {self._vocabulary}")
        return seconds, tokens

    def _forced(self, side: SideHandle) -> Forced:
        tokens = self._forced_tokens
        with self.given(self._forced_inputs) as given:
            found = read(side, Forced, "forced", **given, continuations=tokens, top=TOP_LOGPROBS)
        if len(found.argmax) != len(tokens):
            raise garbled(side, "forced", f"{len(found.argmax)} answers to {len(tokens)} prompts")
        return found

    def _discrepancies(self, answer: Forced) -> list[float]:
        pairs = zip(answer.argmax, self._forced_tokens, strict=True)
        return [calibrate.token_discrepancy(ids, forced) for ids, forced in pairs]

    def _drawn(self, requests: int, lens: tuple[int, int], shapes: Sequence[Shape]) -> list[Asked]:
        """lens: a range of prompts' lengths, where they are drawn."""
        media = self._media.of(shapes, requests) if any(shapes) else [{} for _ in range(requests)]
        return [Asked([*(self._prompt if one else ()), *self._text(lens)], one) for one in media]

    def _text(self, lens: tuple[int, int]) -> list[int]:
        """Drawn ids; none where the fixed prompt is whole."""
        if self._prompt and not self._samples.input_lens[1]:
            return []
        return [self._rng.randrange(self._text_below) for _ in range(self._rng.randint(*lens))]
