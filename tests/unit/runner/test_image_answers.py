"""A trial of an image encoder on two simulated sides: amounts, audit, discrepancies, and bad answers."""

import os
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastkernels import registry
from fastkernels.registry.schema import ImageSamples
from fastkernels.registry.workloads import ImageWorkload
from fastkernels.runner import model as model_module
from fastkernels.runner.arrays import digest, packed
from fastkernels.runner.handed import taken
from fastkernels.runner.image_answers import AUDITED_IMAGES, EMBEDDING, ImageAnswers
from fastkernels.runner.model import ModelTrial
from tests.unit.runner.fake_sides import FakeSides

SAMPLES = ImageSamples(images=12, resolutions=((16, 16), (16, 24)))
WORKLOADS = [
    ImageWorkload(
        name="many", kind="throughput", size="tiny", requests=32, batch=8, resolutions=((16, 16), (8, 24))
    ),
    ImageWorkload(name="one", kind="latency", size="tiny", requests=20, batch=2, resolutions=((8, 8),)),
]


def feature(image: np.ndarray) -> np.ndarray:
    """A large common part, as real features have, and the image's own."""
    height, width, _ = image.shape
    parts = [image[y::4, x::4].astype(float).mean() / 255 for y in range(4) for x in range(4)]
    return np.array([100.0 + part for part in parts] + [height / 100, width / 100])


class FakeSide:
    """Answers like an ImageSide; each batch takes `seconds` on the fake clock. wrong: features of samples are
    those of the neighbour. lies: the same in timed runs only. late: made when they are asked for. stalls: the
    second batch of each run waits for ten seconds."""

    def __init__(self, trial: FakeSides, side: str, seconds: float, wrong: bool = False, lies: bool = False,
                 missing: int = 0, nan: bool = False, late: bool = False,
                 stalls: bool = False) -> None:  # fmt: skip
        self.trial, self.side, self.seconds = trial, side, seconds
        self.wrong, self.lies, self.missing, self.nan = wrong, lies, missing, nan
        self.late, self.stalls = late, stalls
        self.features: list[np.ndarray] = []
        self.batches: list[tuple[int, int]] = []

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.trial.log.append((self.side, do))
        return getattr(self, do)(**arguments)

    def sites(self) -> dict[str, Any]:
        return {"sites": {"L1/layer_norm": ["norm"]}}

    def proof(self, sites: dict[str, list[str]], images: list[np.ndarray]) -> dict[str, Any]:
        assert len({image.shape for image in images}) == 2
        return {"calls": {"L1/layer_norm": 3}, "site_s": self.seconds / 2, "total_s": 2 * self.seconds}

    def answer(self, start: int, forms: list[Any], descriptors: list[int]) -> dict[str, Any]:
        images = taken(forms, [os.dup(descriptor) for descriptor in descriptors])
        self.trial.now += self.seconds + 10 * (self.stalls and len(images) == start)
        self.batches.append((start, len(images)))
        found = [feature(image) for image in images]
        if self.wrong or (self.lies and len(images) != SAMPLES.images):
            found = found[1:] + found[:1]
        if self.nan and not start:
            found[0][0] = float("nan")
        self.features[start:] = found
        said = [digest(np.zeros(18)) if self.late else digest(one) for one in found]
        return {"digests": said[: len(said) - self.missing]}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        return {"arrays": [packed(self.features[i]) for i in chosen]}

    def stats(self) -> dict[str, Any]:
        return {"engine": {}, "passed_over": {}, "settings": {}}


def run(sides: FakeSides, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(model_module.time, "perf_counter", lambda: sides.now)
    rng = random.Random(1)
    trial = ModelTrial(
        architecture=registry.architecture("siglip2"),
        model="m",
        config="tiny",
        size="tiny",
        answers=ImageAnswers(EMBEDDING, SAMPLES, rng),
        workloads=WORKLOADS,
        candidates=SimpleNamespace(files={"L1/layer_norm": "x.py"}, layers=(), shadowed=lambda: ()),  # type: ignore[arg-type]
        sides=sides,  # type: ignore[arg-type]
        rounds=4,
        extra_s=6.0,
        report=lambda text: None,
    )
    return trial.run()


def test_a_faster_and_right_candidate(monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.2)
    result = run(sides, monkeypatch)
    assert result.valid
    assert result.correctness == 1.0
    many, one = result.workloads
    assert (many.unit, many.baseline[0]) == ("images/s", pytest.approx(32 / (4 * 0.4)))
    assert (one.unit, one.baseline[0]) == ("s", pytest.approx(0.4))  # of one batch
    assert many.throughput_ratio == pytest.approx(2.0)
    assert one.latency_ratio == pytest.approx(2.0)
    assert len({str(change) for change in sides.changes}) == len(result.noise_d) == 3
    assert len(result.d) == SAMPLES.images + (4 + 6) * AUDITED_IMAGES, "of every round of both"
    assert result.ruin_point > 0.3, "other images must count as unrelated"


def test_a_latency_is_the_median_batch_and_a_throughput_is_all_of_them(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.4, stalls=True), monkeypatch)
    many, one = result.workloads
    assert many.throughput_ratio == pytest.approx(1.6 / 11.6)
    assert one.latency_ratio == pytest.approx(1.0)


def test_a_batch_comes_when_the_one_before_is_answered(monkeypatch):
    """All at once could be answered together."""
    sides = FakeSides(FakeSide, seconds=0.2)
    run(sides, monkeypatch)
    for side in sides.sides.values():
        assert side.batches[:4] == [(0, 8), (8, 8), (16, 8), (24, 8)]
        assert side.batches.count((18, 2)) >= 4


def test_answers_that_are_made_after_the_clock_has_stopped_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.001, late=True), monkeypatch)
    assert "TAMPERED(late-answer): answer " in result.failure.message


def test_a_wrong_candidate_is_invalid(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, wrong=True), monkeypatch)
    assert not result.valid
    assert result.correctness < 0.3


def test_being_right_only_while_compared_does_not_help(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, lies=True), monkeypatch)
    assert not result.valid
    assert max(result.d[: SAMPLES.images]) < 1e-6 < 0.5 < max(result.d[SAMPLES.images :])


def test_features_that_are_not_numbers_count_as_unrelated(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, nan=True), monkeypatch)
    assert result.d[0] == 1.0
    assert max(result.d[1 : SAMPLES.images]) < 1e-6
    assert result.correctness < 1


def test_features_of_another_length_count_as_unrelated(monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    candidate = sides.sides["candidate"]
    answer = candidate.answer

    def shorter(**arguments: Any) -> dict[str, Any]:
        answer(**arguments)
        if arguments["start"] == 0:
            candidate.features[0] = candidate.features[0][:-1]
        return {"digests": [digest(one) for one in candidate.features[arguments["start"] :]]}

    monkeypatch.setattr(candidate, "answer", shorter)
    result = run(sides, monkeypatch)
    assert result.d[0] == 1.0
    assert max(result.d[1 : SAMPLES.images]) < 1e-6


@pytest.mark.parametrize("shape", [[], [1, 1]])
def test_arrays_of_other_dimensions_are_no_features(shape, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    side = sides.sides["candidate"]
    answer, one = side.answer, np.ones(1)

    def other(**arguments: Any) -> dict[str, Any]:
        return {"digests": [digest(one) for _ in answer(**arguments)["digests"]]}

    def outputs(chosen: list[int]) -> dict[str, Any]:
        return {"arrays": [{**packed(one), "shape": shape} for _ in chosen]}

    monkeypatch.setattr(side, "answer", other)
    monkeypatch.setattr(side, "outputs", outputs)
    message = run(sides, monkeypatch).failure.message
    assert message == "garbled answer to 'outputs': answers are not of 1 dimensions"


@pytest.mark.parametrize(
    "arrays", [None, [], [packed(np.ones(3))] * 99, [[1.0]] * 8, [{"shape": [3]}] * 8, [1.0] * 8]
)
def test_what_are_no_features_is_a_failure(arrays, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    monkeypatch.setattr(sides.sides["candidate"], "outputs", lambda chosen: {"arrays": arrays})
    assert run(sides, monkeypatch).failure.message.startswith("garbled answer to 'outputs': ")


@pytest.mark.parametrize("said", [{}, {"digests": 32}, {"digests": [0] * 32}, {"answers": 32}])
def test_what_are_no_digests_is_a_failure(said, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    monkeypatch.setattr(sides.sides["candidate"], "answer", lambda **arguments: said)
    assert run(sides, monkeypatch).failure.message.startswith("garbled answer to 'answer': ")


def test_missing_features_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, missing=1), monkeypatch)
    assert result.failure is not None
    assert "got 7" in result.failure.message


def test_images_differ_and_have_the_asked_sizes():
    answers = ImageAnswers(EMBEDDING, SAMPLES, random.Random(2))
    first, second = answers.inputs(WORKLOADS[0]), answers.inputs(WORKLOADS[0])
    assert [image.shape for image in first[:3]] == [(16, 16, 3), (8, 24, 3), (16, 16, 3)]
    assert all(image.dtype == np.uint8 for image in first)
    assert len({image.tobytes() for image in first + second}) == 64


def test_a_workload_is_whole_batches():
    with pytest.raises(ValueError, match="9 images are no whole number of batches of 2"):
        ImageWorkload(name="x", kind="latency", size="tiny", requests=9, batch=2, resolutions=((8, 8),))
