"""A trial of a text-to-image model on two simulated sides: amounts, audit, discrepancies, and bad answers."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastkernels import registry
from fastkernels.registry.schema import GenerationSamples, GenerationWorkload
from fastkernels.runner import model as model_module
from fastkernels.runner.arrays import packed
from fastkernels.runner.generation_answers import AUDITED_IMAGES, GenerationAnswers
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
    neighbour's. lies: the same in timed runs only."""

    def __init__(self, trial: FakeSides, side: str, seconds: float, wrong: bool = False, lies: bool = False,
                 missing: int = 0, nan: bool = False, torn: bool = False) -> None:  # fmt: skip
        self.trial, self.side, self.seconds = trial, side, seconds
        self.wrong, self.lies, self.missing, self.nan, self.torn = wrong, lies, missing, nan, torn

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.trial.log.append((self.side, do))
        return getattr(self, do)(**arguments)

    def sites(self) -> dict[str, Any]:
        return {"sites": {"L1/linear": ["proj_out"]}}

    def proof(self, sites: dict[str, list[str]], images: list[dict[str, int]]) -> dict[str, Any]:
        assert len({(image["height"], image["width"]) for image in images}) == 2
        return {"calls": {"L1/linear": 3}, "site_s": self.seconds / 2, "total_s": 2 * self.seconds}

    def load(self, images: list[dict[str, int]]) -> dict[str, Any]:
        self.images = images
        return {}

    def generate(self, batch: int) -> dict[str, Any]:
        self.trial.now += self.seconds * -(-len(self.images) // batch)
        self.made = [pixels(**image) for image in self.images]
        if self.wrong or (self.lies and len(self.images) != SAMPLES.images):
            self.made = [pixels(**{**image, "seed": image["seed"] + 1}) for image in self.images]
        if self.nan:
            self.made[0][0, 0] = float("nan")
        return {"images": len(self.made) - self.missing}

    def outputs(self, index: int) -> dict[str, Any]:
        image = packed(self.made[index])
        return {"image": {**image, "shape": [7, 3]} if self.torn else image}

    def stats(self) -> dict[str, Any]:
        return {"engine": {}, "passed_over": {}, "settings": {}}


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
        candidates=SimpleNamespace(files={"L1/linear": "x.py"}, shadowed=lambda: ()),  # type: ignore[arg-type]
        sides=sides,  # type: ignore[arg-type]
        rng=rng,
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
    assert len(result.d) == SAMPLES.images + 2 * AUDITED_IMAGES
    assert result.ruin_point > 0.3, "other images must count as unrelated"


def test_images_are_loaded_before_the_clock_starts(monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.2)
    run(sides, monkeypatch)
    for side in ("baseline", "candidate"):
        calls = [do for name, do in sides.log if name == side and do in ("load", "generate")]
        assert calls == ["load", "generate"] * (len(calls) // 2)


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


@pytest.mark.parametrize("reply", [{}, {"image": None}, {"image": {"shape": [10**30], "float32": ""}}])
def test_what_is_no_image_is_a_failure(reply, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    monkeypatch.setattr(sides.sides["candidate"], "outputs", lambda index: reply)
    assert run(sides, monkeypatch).failure is not None


def test_pixels_that_are_not_numbers_count_as_unrelated(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, nan=True), monkeypatch)
    assert result.d[0] == 1.0
    assert max(result.d[1 : SAMPLES.images]) < 1e-6
    assert result.correctness < 1


def test_missing_images_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, missing=1), monkeypatch)
    assert result.failure is not None
    assert "got 7" in result.failure.message


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
