"""A trial of a text-to-image model on two simulated sides: amounts, audit, discrepancies, and bad answers."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastkernels import registry
from fastkernels.registry.schema import GenerationSamples
from fastkernels.registry.workloads import GenerationWorkload
from fastkernels.runner import model as model_module
from fastkernels.runner.arrays import digest, packed
from fastkernels.runner.generation_answers import GenerationAnswers
from fastkernels.runner.model import ModelTrial
from tests.unit.runner.fake_sides import FakeSides

SAMPLES = GenerationSamples(images=6, resolutions=((32, 32), (32, 64)), prompt_len=4, steps=2)
MANY = GenerationWorkload(
    name="many",
    kind="throughput",
    size="tiny",
    requests=8,
    batch=4,
    resolution=(32, 64),
    prompt_len=4,
    steps=2,
)
ONE = GenerationWorkload(
    name="one", kind="latency", size="tiny", requests=6, batch=2, resolution=(32, 32), prompt_len=4, steps=2
)


def pixels(seed: int, height: int, width: int, prompt_len: int, steps: int) -> np.ndarray:
    """A large common part of each colour, as real images may have, and the image's own."""
    return 100 + np.random.default_rng(seed).normal(size=(height * width, 3))


class FakeSide:
    """Answers like a GenerationSide; each batch takes `seconds` on the fake clock. wrong: an image is its
    neighbour's. lies: the same in timed runs only. late: made when they are asked for."""

    def __init__(self, trial: FakeSides, side: str, seconds: float, wrong: bool = False, lies: bool = False,
                 missing: int = 0, nan: bool = False, torn: bool = False,
                 late: bool = False) -> None:  # fmt: skip
        self.trial, self.side, self.seconds = trial, side, seconds
        self.wrong, self.lies, self.missing, self.nan, self.torn = wrong, lies, missing, nan, torn
        self.late = late
        self.made: list[np.ndarray] = []

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.trial.log.append((self.side, do))
        return getattr(self, do)(**arguments)

    def sites(self) -> dict[str, Any]:
        return {"sites": {"L1/linear": ["proj_out"]}}

    def proof(self, sites: dict[str, list[str]], images: list[dict[str, int]]) -> dict[str, Any]:
        assert len({(image["height"], image["width"]) for image in images}) == 2
        return {"calls": {"L1/linear": 3}, "site_s": self.seconds / 2, "total_s": 2 * self.seconds}

    def generate(self, start: int, images: list[dict[str, int]]) -> dict[str, Any]:
        self.trial.now += self.seconds
        found = [pixels(**image) for image in images]
        if self.wrong or (self.lies and len(images) != SAMPLES.images):
            found = [pixels(**{**image, "seed": image["seed"] + 1}) for image in images]
        if self.nan and not start:
            found[0][0, 0] = float("nan")
        self.made[start:] = found
        said = [digest(np.zeros(3)) if self.late else digest(one) for one in found]
        return {"digests": said[: len(said) - self.missing]}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        arrays = [packed(self.made[i]) for i in chosen]
        return {"arrays": [{**array, "shape": [7, 3]} if self.torn else array for array in arrays]}

    def decoded(self, latents: np.ndarray, height: int, width: int) -> dict[str, Any]:
        assert latents.shape == (height * width, 3)
        return {"arrays": [packed(latents)]}

    def stats(self) -> dict[str, Any]:
        return {"engine": {}, "passed_over": {}, "settings": {}}


RUNS = 4 + 6  # of both workloads: the rounds that are asked for, and the least of a latency


def run(sides: FakeSides, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(model_module.time, "perf_counter", lambda: sides.now)
    rng = random.Random(1)
    trial = ModelTrial(
        architecture=registry.architecture("flux"),
        model="m",
        config="tiny",
        size="tiny",
        answers=GenerationAnswers(SAMPLES, rng),
        workloads=[MANY, ONE],
        candidates=SimpleNamespace(files={"L1/linear": "x.py"}, layers=(), shadowed=lambda: ()),  # type: ignore[arg-type]
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
    assert (many.unit, many.baseline[0]) == ("images/s", pytest.approx(8 / (2 * 0.4)))
    assert (one.unit, one.baseline[0]) == ("s", pytest.approx(0.4))  # of one batch
    assert many.throughput_ratio == pytest.approx(2.0)
    assert one.latency_ratio == pytest.approx(2.0)
    assert len({str(change) for change in sides.changes}) == len(result.noise_d) == 3
    assert len(result.d) == SAMPLES.images + RUNS, "one of each run"
    assert result.ruin_point > 0.3, "other images must count as unrelated"


def test_latents_that_are_made_after_the_clock_has_stopped_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.001, late=True), monkeypatch)
    assert "TAMPERED(late-answer): answer " in result.failure.message


def test_the_baseline_decodes_latents_of_timed_runs(monkeypatch):
    """A decoder that makes right images of any latents is not asked."""
    sides = FakeSides(FakeSide, seconds=0.2)
    run(sides, monkeypatch)
    assert sides.log.count(("baseline", "decoded")) == SAMPLES.images + 2 * RUNS
    assert sides.log.count(("candidate", "decoded")) == SAMPLES.images


def test_latents_of_another_shape_count_as_unrelated(monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.2)
    side = sides.sides["candidate"]
    generate = side.generate

    def shorter(start: int, images: list[dict[str, int]]) -> dict[str, Any]:
        said = generate(start, images)
        if len(images) == SAMPLES.images:
            return said
        side.made[start:] = [one[:-1] for one in side.made[start:]]
        return {"digests": [digest(one) for one in side.made[start:]]}

    monkeypatch.setattr(side, "generate", shorter)
    result = run(sides, monkeypatch)
    assert result.d[SAMPLES.images :] == (1.0,) * RUNS
    assert not result.valid


def test_a_wrong_candidate_is_invalid(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, wrong=True), monkeypatch)
    assert not result.valid
    assert result.correctness < 0.3


def test_being_right_only_while_compared_does_not_help(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, lies=True), monkeypatch)
    assert not result.valid
    assert max(result.d[: SAMPLES.images]) < 1e-6 < 0.5 < max(result.d[SAMPLES.images :])


def test_what_is_no_array_is_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, torn=True), monkeypatch)
    assert result.failure is not None
    assert ": no packed array: cannot reshape" in result.failure.message


@pytest.mark.parametrize("do", ["outputs", "decoded"])
@pytest.mark.parametrize("reply", [{}, {"arrays": None}, {"arrays": [{"shape": [10**30], "float32": ""}]}])
def test_what_is_no_image_is_a_failure(do, reply, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    monkeypatch.setattr(sides.sides["candidate"], do, lambda **arguments: reply)
    assert run(sides, monkeypatch).failure is not None


def test_pixels_that_are_not_numbers_count_as_unrelated(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, nan=True), monkeypatch)
    assert result.d[0] == 1.0
    assert max(result.d[1 : SAMPLES.images]) < 1e-6
    assert result.correctness < 1


def test_missing_images_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, missing=1), monkeypatch)
    assert result.failure is not None
    assert "got 3" in result.failure.message


def test_every_image_has_a_seed_of_its_own():
    answers = GenerationAnswers(SAMPLES, random.Random(2))
    first, second = answers.inputs(MANY), answers.inputs(MANY)
    assert len({image["seed"] for image in first + second}) == 16
    assert {(image["height"], image["width"], image["steps"]) for image in first} == {(32, 64, 2)}


def test_facts_that_are_refused():
    with pytest.raises(ValueError, match="9 images are no whole number of batches of 2"):
        GenerationWorkload(**{**ONE.model_dump(), "requests": 9})
    with pytest.raises(ValueError, match="3 images do not show 2 resolutions twice each"):
        GenerationSamples(**{**SAMPLES.model_dump(), "images": 3})
