"""Models that answer an image, with a feature or with detections: batches one after another.

Images reach a side just before the clock starts, as the inputs of an iteration do in tier 1: pixels of a
thousand photographs take longer to cross to a process than to encode.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from fastkernels.registry.schema import ImageSamples, ImageWorkload
from fastkernels.runner import image_batches
from fastkernels.runner.answers import Comparison
from fastkernels.runner.replies import Detections, Features, garbled, read
from fastkernels.runner.sides import SideHandle, Sides
from fastkernels.score import calibrate

AUDITED_IMAGES = 8  # of each timed run, answered again by the baseline if the run is audited
WARM_UP_BATCHES = 4
PROOF_IMAGES = 8
SIDE_BATCH = 64  # images of one launch where a workload does not say
COARSE = 8  # an image is a random grid of up to 8 x 8 colours under noise: plain noise looks all alike
Images = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Kind:
    """What differs between kinds of answer. reply: its form; discrepancies(expected, found): of each image;
    noise: kernels that compute otherwise in a noise run, one group a run."""

    reply: type[Features | Detections]
    discrepancies: Callable[[list[Any], list[Any]], list[float]]
    noise: tuple[tuple[str, ...], ...]


# PyTorch's own arithmetic in the pointwise kernels; in what multiplies matrices.
EMBEDDING = Kind(
    Features,
    calibrate.embedding_discrepancies,
    (("layer_norm", "add_layer_norm", "activation", "resize_grid"), ("dense_attention",)),
)
DETECTIONS = Kind(
    Detections,
    calibrate.detection_discrepancies,
    (("bias_activation", "box_decode"), ("conv2d", "dense_attention")),
)


class ImageAnswers:
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
        """Answers to a few images, chosen after the run: fetching all would take longer than the run."""
        seconds = self._run(side, inputs, workload.batch)
        chosen = image_batches.chosen(self._rng, len(inputs), AUDITED_IMAGES)
        return seconds, dict(zip(chosen, self._answers_to(side, chosen), strict=True))

    def amount(self, workload: ImageWorkload) -> float:
        return image_batches.amount(workload)

    def audit(self, baseline: SideHandle, inputs: Images, answers: dict[int, Any]) -> list[float]:
        """The baseline answers images of the timed run again, in other company."""
        return self._compared(baseline, [inputs[i] for i in answers], list(answers.values()))

    def proof(self) -> dict[str, Any]:
        return {"images": self._images(PROOF_IMAGES, self._samples.resolutions)}

    def compare(self, sides: Sides, report: Callable[[str], None]) -> Comparison:
        self._sampled = self._images(self._samples.images, self._samples.resolutions)
        report("answers, baseline")
        self._expected = self._all(sides.use("baseline"))
        report("answers, candidate")
        found = self._all(sides.use("candidate"))
        # Shifted by one, every image is held against the answer to another one.
        unrelated = [*self._expected[1:], self._expected[0]]
        return Comparison(
            d=self._kind.discrepancies(self._expected, found),
            ruin=self._kind.discrepancies(self._expected, unrelated),
        )

    def again(self, side: SideHandle) -> list[float]:
        return self._kind.discrepancies(self._expected, self._all(side))

    def _compared(self, baseline: SideHandle, images: Images, found: list[Any]) -> list[float]:
        self._run(baseline, images, SIDE_BATCH)
        return self._kind.discrepancies(self._answers_to(baseline, range(len(images))), found)

    def _all(self, side: SideHandle) -> list[Any]:
        self._run(side, self._sampled, SIDE_BATCH)
        return self._answers_to(side, range(len(self._sampled)))

    def _run(self, side: SideHandle, images: Images, batch: int) -> float:
        """Seconds from the word to answer to the word that all answers are there."""
        return image_batches.run(side, "answer", "answers", images, batch)

    def _answers_to(self, side: SideHandle, chosen: Sequence[int]) -> list[Any]:
        found = read(side, self._kind.reply, "outputs", chosen=list(chosen)).answers
        if len(found) != len(chosen):
            raise garbled(side, "outputs", f"{len(found)} answers to {len(chosen)} images")
        return found

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
