"""Models that answer with tokens: greedy runs of exact lengths, compared by teacher forcing."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, NamedTuple

from fastkernels.records import Failure, Size
from fastkernels.registry.schema import SpeechSamples, TokenSamples
from fastkernels.runner.answers import Comparison
from fastkernels.runner.replies import Forced, Tokens, garbled, parsed, read
from fastkernels.runner.sides import Side, SideFailure, SideHandle, Sides
from fastkernels.score import calibrate, timed_tokens
from fastkernels.score.timed_tokens import Said

NOISE_KERNELS = ("rms_norm", "add_rms_norm", "glu", "rope", "rope_store_kv")
NOISE_CHUNK: dict[Size, int] = {"tiny": 48, "full": 1024}
TOP_LOGPROBS = 20  # positions keep this many for the KL bound
AUDITED_REQUESTS = 8  # of each workload's timed output, replayed by the baseline; one of each run at least
Prompts = list[list[int]]


class Kept(NamedTuple):
    """Some requests of a timed run and what the candidate said to them; how much the baseline repeats."""

    inputs: list[Any]
    said: Prompts
    repeated: float


class TokenAnswers:
    """d = 1 - teacher-forced top-1 agreement with the baseline's own greedy tokens, for each request."""

    noise_kernels = NOISE_KERNELS

    def __init__(
        self, samples: TokenSamples | SpeechSamples, vocabulary: int, size: Size, rng: random.Random
    ) -> None:
        self._samples: Any = samples  # of the kind that this class or the one above asks
        self._vocabulary, self._rng = vocabulary, rng
        self._largest_noise_gap = 0.0
        # Another split of the batch, other chunks of the prompts, PyTorch's own arithmetic in the pointwise
        # kernels.
        self.noise_changes: list[dict[str, Any]] = [
            {"max_num_seqs": max(2, samples.requests // 2)},
            {"max_num_batched_tokens": NOISE_CHUNK[size]},
            {"noise": self.noise_kernels},
        ]

    # ---- what models with other inputs define

    def inputs(self, workload: Any) -> list[Any]:
        return self._prompts(workload.requests, (workload.input_len, workload.input_len))

    def sampled(self) -> list[Any]:
        """The inputs that both sides are compared on."""
        assert isinstance(self._samples, TokenSamples)
        return self._prompts(self._samples.requests, self._samples.input_lens)

    def given(self, inputs: list[Any]) -> AbstractContextManager[dict[str, Any]]:
        """The arguments of a call that hands the inputs over."""
        return contextlib.nullcontext({"prompts": inputs})

    def proof(self) -> dict[str, Any]:
        return {"prompts": self._prompts(4, (8, 24)), "max_tokens": 8}

    # ---- what all have

    def warm_up(self, side: SideHandle, workload: Any) -> None:
        """A whole run, other prompts: after a shorter one the first timed run is slower than the next
        (decision 68), and it is always the baseline's."""
        self.timed(side, self.inputs(workload), workload)

    def timed(self, side: SideHandle, inputs: list[Any], workload: Any) -> tuple[float, Prompts]:
        return self._run(side, inputs, workload.output_len)

    def amount(self, workload: Any) -> float:
        return workload.requests * workload.output_len if workload.kind == "throughput" else 1

    def kept(self, inputs: list[Any], baseline: Prompts, candidate: Prompts) -> Kept:
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
        self._forced_inputs = self.sampled()
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

    def _run(self, side: SideHandle, inputs: list[Any], output_len: int) -> tuple[float, Prompts]:
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

    def _prompts(self, requests: int, lens: tuple[int, int]) -> Prompts:
        return [
            [self._rng.randrange(self._vocabulary) for _ in range(self._rng.randint(*lens))]
            for _ in range(requests)
        ]
