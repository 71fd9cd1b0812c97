"""Models that answer an image, with a feature or with detections: batches one after another.

Images reach a side with the word to answer them (handed.py), and a digest of every answer comes back while
the clock runs (image_batches.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any

import numpy as np

from fastkernels.registry.schema import ImageSamples
from fastkernels.registry.workloads import ImageWorkload
from fastkernels.runner import image_batches
from fastkernels.runner.answers import Comparison
from fastkernels.runner.handed import handed
from fastkernels.runner.replies import garbled
from fastkernels.runner.sides import SideHandle, Sides
from fastkernels.score import calibrate

AUDITED_IMAGES = 8  # of each timed run, answered again by the baseline
WARM_UP_BATCHES = 4
PROOF_IMAGES = 8
SIDE_BATCH = 64  # images of one launch where a workload does not say
COARSE = 8  # an image is a random grid of up to 8 x 8 colours under noise: plain noise looks all alike
Images = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between kinds of answer. dims: of the array that one is; discrepancies(expected, found):
    of each image; noise: kernels that compute otherwise in a noise run, one group a run."""

    dims: int
    discrepancies: Callable[[list[Any], list[Any]], list[float]]
    noise: tuple[tuple[str, ...], ...]


# PyTorch's own arithmetic in the pointwise kernels; in what multiplies matrices.
EMBEDDING = Kind(
    1,
    calibrate.embedding_discrepancies,
    (("layer_norm", "add_layer_norm", "activation", "resize_grid"), ("dense_attention",)),
)
DETECTIONS = Kind(
    2,
    calibrate.detection_discrepancies,
    (("bias_activation", "box_decode"), ("conv2d", "dense_attention")),
)


class ImageAnswers(image_batches.BatchedAnswers):
    """A feature of each image, or its detections."""

    def __init__(self, kind: Kind, samples: ImageSamples, rng: random.Random) -> None:
        self._kind, self._samples, self._rng = kind, samples, rng
        # The first has other company in a batch.
        self.noise_changes: list[dict[str, Any]] = [
            {"max_batch": max(1, samples.images // 3)},
            *({"noise": group} for group in kind.noise),
        ]

    def inputs(self, workload: ImageWorkload) -> Images:
        return self._images(workload.requests, workload.resolutions)

    def warm_up(self, side: SideHandle, workload: ImageWorkload) -> None:
        count = min(workload.requests, WARM_UP_BATCHES * workload.batch)
        self._run(side, self._images(count, workload.resolutions), workload.batch)

    def timed(
        self, side: SideHandle, inputs: Images, workload: ImageWorkload
    ) -> tuple[float, dict[int, Any]]:
        """Answers to a few images, chosen after the run."""
        seconds, digests = self._run(side, inputs, workload.batch)
        chosen = image_batches.chosen(self._rng, len(inputs), AUDITED_IMAGES)
        answers = dict(zip(chosen, self._answers(side, digests, chosen), strict=True))
        return image_batches.measured(workload, seconds), answers

    def audit(self, baseline: SideHandle, runs: Sequence[list[tuple[Any, Any]]]) -> list[float]:
        """The baseline answers images of the timed runs again, in other company."""
        images, answers = zip(*chain.from_iterable(runs))
        return self._kind.discrepancies(self._all(baseline, list(images)), list(answers))

    def proof(self) -> dict[str, Any]:
        return {"images": self._images(PROOF_IMAGES, self._samples.resolutions)}

    def compare(self, sides: Sides, report: Callable[[str], None]) -> Comparison:
        self._sampled = self._images(self._samples.images, self._samples.resolutions)
        report("answers, baseline")
        self._expected = self._all(sides.use("baseline"), self._sampled)
        report("answers, candidate")
        found = self._all(sides.use("candidate"), self._sampled)
        # Shifted by one, every image is held against the answer to another one.
        unrelated = [*self._expected[1:], self._expected[0]]
        return Comparison(
            d=self._kind.discrepancies(self._expected, found),
            ruin=self._kind.discrepancies(self._expected, unrelated),
        )

    def again(self, side: SideHandle) -> list[float]:
        return self._kind.discrepancies(self._expected, self._all(side, self._sampled))

    def _all(self, side: SideHandle, images: Images) -> list[np.ndarray]:
        _, digests = self._run(side, images, SIDE_BATCH)
        return self._answers(side, digests, range(len(images)))

    def _run(self, side: SideHandle, images: Images, batch: int) -> tuple[list[float], list[str]]:
        return image_batches.run(side, "answer", images, batch, handed)

    def _answers(self, side: SideHandle, digests: list[str], chosen: Sequence[int]) -> list[np.ndarray]:
        found = image_batches.answers(side, digests, chosen)
        if any(answer.ndim != self._kind.dims for answer in found):
            raise garbled(side, "outputs", f"answers are not of {self._kind.dims} dimensions")
        return found

    def _images(self, count: int, resolutions: Sequence[tuple[int, int]]) -> Images:
        """uint8 [H, W, 3] each; resolutions take turns."""
        generator = np.random.default_rng(self._rng.getrandbits(64))
        return [_image(generator, size) for size in islice(cycle(resolutions), count)]


def _image(generator: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    rows, columns = generator.integers(1, COARSE + 1, 2)
    colours = generator.integers(0, 256, (rows, columns, 3), dtype=np.uint8) // 4 * 3
    y, x = (np.arange(side) * parts // side for side, parts in zip(size, (rows, columns)))
    # A workload has thousands of images: whole bytes are drawn five times as fast as any other range, and
    # rows taken forty times as fast as by indexing.
    pixels_HW3 = generator.integers(0, 256, (*size, 3), dtype=np.uint8)
    pixels_HW3 >>= 2
    pixels_HW3 += colours.take(x, axis=1).take(y, axis=0)
    return pixels_HW3
