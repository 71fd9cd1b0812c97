"""Models that answer an image with a feature: batches one after another, compared by centred cosine.

Images reach a side just before the clock starts, as the inputs of an iteration do in tier 1: pixels of a
thousand photographs take longer to cross to a process than to encode.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from fastkernels.records import Failure
from fastkernels.registry.schema import ImageSamples, ImageWorkload
from fastkernels.runner.answers import Comparison
from fastkernels.runner.sides import SideFailure, SideHandle, Sides
from fastkernels.score import calibrate

NOISE_POINTWISE = ("layer_norm", "activation", "resize_grid")
NOISE_ATTENTION = ("dense_attention",)
AUDITED_IMAGES = 8  # of each timed run, encoded again by the baseline if the run is audited
WARM_UP_BATCHES = 4
PROOF_IMAGES = 8
SIDE_BATCH = 64  # images of one launch where a workload does not say
COARSE = 8  # an image is a random grid of up to 8 x 8 colours under noise: plain noise looks all alike
Images = list[np.ndarray]
Rows = list[list[float]]


class EmbeddingAnswers:
    """d = 1 - cosine of an image's features, both less the mean of the baseline's over the samples."""

    def __init__(self, samples: ImageSamples, rng: random.Random) -> None:
        self._samples, self._rng = samples, rng
        # Other company in a batch, PyTorch's own arithmetic in the pointwise kernels, and in attention.
        self.noise_changes: list[dict[str, Any]] = [
            {"max_batch": max(1, samples.images // 3)},
            {"noise": NOISE_POINTWISE},
            {"noise": NOISE_ATTENTION},
        ]

    def inputs(self, workload: ImageWorkload) -> Images:
        return self._images(workload.requests, workload.resolutions)

    def warm_up(self, side: SideHandle, workload: ImageWorkload) -> None:
        count = min(workload.requests, WARM_UP_BATCHES * workload.batch)
        self._run(side, self._images(count, workload.resolutions), workload.batch)

    def timed(
        self, side: SideHandle, inputs: Images, workload: ImageWorkload
    ) -> tuple[float, dict[int, list[float]]]:
        """Features of a few images, chosen after the run: fetching all would take longer than the run."""
        seconds = self._run(side, inputs, workload.batch)
        chosen = sorted(self._rng.sample(range(len(inputs)), min(AUDITED_IMAGES, len(inputs))))
        return seconds, dict(zip(chosen, self._features(side, chosen), strict=True))

    def amount(self, workload: ImageWorkload) -> float:
        return workload.requests if workload.kind == "throughput" else workload.requests / workload.batch

    def audit(self, baseline: SideHandle, inputs: Images, answers: dict[int, list[float]]) -> list[float]:
        """The baseline encodes images of the timed run again, in other company."""
        return self._compared(baseline, [inputs[i] for i in answers], list(answers.values()))

    def proof(self) -> dict[str, Any]:
        return {"images": self._images(PROOF_IMAGES, self._samples.resolutions)}

    def compare(self, sides: Sides, report: Callable[[str], None]) -> Comparison:
        self._sampled = self._images(self._samples.images, self._samples.resolutions)
        report("features, baseline")
        self._expected = self._all(sides.use("baseline"))
        report("features, candidate")
        found = self._all(sides.use("candidate"))
        # Shifted by one, every image is held against another one's features.
        unrelated = [*self._expected[1:], self._expected[0]]
        return Comparison(
            d=calibrate.embedding_discrepancies(self._expected, found),
            ruin=calibrate.embedding_discrepancies(self._expected, unrelated),
        )

    def again(self, side: SideHandle) -> list[float]:
        return calibrate.embedding_discrepancies(self._expected, self._all(side))

    def _compared(self, baseline: SideHandle, images: Images, found: Rows) -> list[float]:
        self._run(baseline, images, SIDE_BATCH)
        return calibrate.embedding_discrepancies(self._features(baseline, range(len(images))), found)

    def _all(self, side: SideHandle) -> Rows:
        self._run(side, self._sampled, SIDE_BATCH)
        return self._features(side, range(len(self._sampled)))

    def _run(self, side: SideHandle, images: Images, batch: int) -> float:
        """Seconds from the word to encode to the word that all features are there."""
        side.call("load", images=images)
        begin = time.perf_counter()
        answer = side.call("encode", batch=batch)
        seconds = time.perf_counter() - begin
        if answer["features"] != len(images):
            problem = f"asked for features of {len(images)} images, got {answer['features']}"
            raise SideFailure(side.side, Failure(message=problem))
        return seconds

    def _features(self, side: SideHandle, chosen: Sequence[int]) -> Rows:
        return side.call("outputs", chosen=list(chosen))["features"]

    def _images(self, count: int, resolutions: Sequence[tuple[int, int]]) -> Images:
        """uint8 [H, W, 3] each; resolutions take turns."""
        generator = np.random.default_rng(self._rng.getrandbits(64))
        return [_image(generator, size) for size in islice(cycle(resolutions), count)]


def _image(generator: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    rows, columns = generator.integers(1, COARSE + 1, 2)
    colours = generator.integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    y, x = (np.arange(side) * parts // side for side, parts in zip(size, (rows, columns)))
    noise = generator.integers(0, 64, (*size, 3), dtype=np.uint8)
    return colours[y][:, x] // 4 * 3 + noise
