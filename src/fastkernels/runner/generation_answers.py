"""Models that answer a prompt with an image: batches one after another, compared by centred cosine.

An image's seed gives its noise and its prompt; the seeds reach a side with the word to generate. Latents are
what is timed, and a digest of each comes back while the clock runs (image_batches.py). What is compared are
images: those of timed runs are decoded by the baseline, those of the samples by their own side.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from fastkernels.registry.schema import GenerationSamples
from fastkernels.registry.workloads import GenerationWorkload
from fastkernels.runner import image_batches
from fastkernels.runner.answers import Comparison
from fastkernels.runner.sides import SideHandle, Sides
from fastkernels.score import calibrate

NOISE_POINTWISE = (
    "modulated_layer_norm", "layer_norm", "add_layer_norm", "rms_norm", "rope_pairs", "activation", "glu",
    "group_norm",
)  # fmt: skip
NOISE_ATTENTION = ("dense_attention",)
AUDITED_IMAGES = 2  # of each workload, generated again by the baseline; one of each timed run at least
WARM_UP_BATCHES = 2  # the second captures the graphs that the timed ones replay
SIDE_BATCH = 8  # images of one launch where a workload does not say
SEED_BITS = 53  # integers that JSON carries whole
Wanted = dict[str, Any]  # an image's seed, height, width, prompt_len and steps
Latents = np.ndarray  # [tokens, channels]
Pixels = np.ndarray  # [pixels, 3]; of a model without a decoder latents


class GenerationAnswers(image_batches.BatchedAnswers):
    """d = 1 - cosine of an image's pixels, both less the baseline's mean of each colour."""

    def __init__(self, samples: GenerationSamples, rng: random.Random) -> None:
        self._samples, self._rng = samples, rng
        # Alone in a launch, PyTorch's own arithmetic in the pointwise kernels, and in attention.
        self.noise_changes: list[dict[str, Any]] = [
            {"max_batch": 1},
            {"noise": NOISE_POINTWISE},
            {"noise": NOISE_ATTENTION},
        ]

    def inputs(self, workload: GenerationWorkload) -> list[Wanted]:
        return self._of_workload(workload, workload.requests)

    def warm_up(self, side: SideHandle, workload: GenerationWorkload) -> None:
        images = self._of_workload(workload, WARM_UP_BATCHES * workload.batch)
        self._run(side, images, workload.batch)

    def timed(
        self, side: SideHandle, inputs: list[Wanted], workload: GenerationWorkload
    ) -> tuple[float, dict[int, Latents]]:
        """The latents of a few images, chosen after the run."""
        seconds, digests = self._run(side, inputs, workload.batch)
        chosen = image_batches.chosen(self._rng, len(inputs), AUDITED_IMAGES)
        answers = dict(zip(chosen, image_batches.answers(side, digests, chosen), strict=True))
        return image_batches.measured(workload, seconds), answers

    def audit(self, baseline: SideHandle, runs: Sequence[list[tuple[Wanted, Latents]]]) -> list[float]:
        """The baseline generates images of the timed runs again, in other company."""
        each = math.ceil(AUDITED_IMAGES / len(runs))
        pairs = [pair for run in runs for pair in self._rng.sample(run, min(each, len(run)))]
        images, found = map(list, zip(*pairs))
        return [
            calibrate.image_discrepancy(_decoded(baseline, theirs, image), _decoded(baseline, ours, image))
            if ours.shape == theirs.shape
            else 1.0
            for theirs, ours, image in zip(self._latents(baseline, images), found, images, strict=True)
        ]

    def proof(self) -> dict[str, Any]:
        """One image of each size: a pass through every module, at all shapes of the samples."""
        return {"images": self._of_samples(len(self._samples.resolutions))}

    def compare(self, sides: Sides, report: Callable[[str], None]) -> Comparison:
        self._sampled = self._of_samples(self._samples.images)
        report("images, baseline")
        self._expected = self._all(sides.use("baseline"), self._sampled)
        report("images, candidate")
        found = self._all(sides.use("candidate"), self._sampled)
        # Resolutions take turns: so far ahead lies another image of the same size.
        turn = len(self._samples.resolutions)
        unrelated = [*self._expected[turn:], *self._expected[:turn]]
        return Comparison(
            d=list(map(calibrate.image_discrepancy, self._expected, found)),
            ruin=list(map(calibrate.image_discrepancy, self._expected, unrelated)),
        )

    def again(self, side: SideHandle) -> list[float]:
        return list(map(calibrate.image_discrepancy, self._expected, self._all(side, self._sampled)))

    def _all(self, side: SideHandle, images: list[Wanted]) -> list[Pixels]:
        latents = self._latents(side, images)
        return [_decoded(side, one, image) for one, image in zip(latents, images, strict=True)]

    def _latents(self, side: SideHandle, images: list[Wanted]) -> list[Latents]:
        _, digests = self._run(side, images, SIDE_BATCH)
        return image_batches.answers(side, digests, range(len(images)))

    def _run(self, side: SideHandle, images: list[Wanted], batch: int) -> tuple[list[float], list[str]]:
        return image_batches.run(
            side, "generate", images, batch, lambda part: contextlib.nullcontext({"images": part})
        )

    def _of_workload(self, workload: GenerationWorkload, count: int) -> list[Wanted]:
        return self._images(count, [workload.resolution], workload.prompt_len, workload.steps)

    def _of_samples(self, count: int) -> list[Wanted]:
        samples = self._samples
        return self._images(count, samples.resolutions, samples.prompt_len, samples.steps)

    def _images(
        self, count: int, resolutions: Sequence[tuple[int, int]], prompt_len: int, steps: int
    ) -> list[Wanted]:
        """Each with a seed of its own; resolutions take turns."""
        return [
            {
                "seed": self._rng.getrandbits(SEED_BITS),
                "height": height,
                "width": width,
                "prompt_len": prompt_len,
                "steps": steps,
            }
            for height, width in islice(cycle(resolutions), count)
        ]


def _decoded(side: SideHandle, latents: Latents, image: Wanted) -> Pixels:
    """One at a time: all of them would be one long message."""
    size = {"height": image["height"], "width": image["width"]}
    return image_batches.arrays(side, "decoded", 1, latents=latents, **size)[0]
