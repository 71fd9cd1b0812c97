"""A trial of a model with named outputs on two simulated sides: amounts, audit, discrepancies, what is
finished by whom, and bad answers."""

import os
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastkernels import registry
from fastkernels.registry.schema import ProgramCorrectness, ProgramSamples
from fastkernels.registry.workloads import ProgramWorkload
from fastkernels.runner.models import model_trial as model_module
from fastkernels.runner.models.model_trial import ModelTrial
from fastkernels.runner.models.program_answers import ProgramAnswers
from fastkernels.runner.transfer.arrays import digest, packed, taken
from tests.unit.runner.fake_sides import FakeSides

COUNT = 12
FACTS = ProgramCorrectness.model_validate({
    "kind": "program",
    "inputs": {"image": {"draw": "image"}},
    "outputs": {"features": "centred_cosine"},
    "noise": [["layer_norm"], ["dense_attention"]],
    "samples": {
        "tiny": {"count": COUNT, "shapes": [{"height": 16, "width": 16}, {"height": 16, "width": 24}]}
    },
})  # fmt: skip
# As of a model whose timed outputs are latents, and whose decoder makes what is compared.
FINISHED = FACTS.model_copy(update={"finished": True, "audited": 2})
AUDITED = FACTS.audited
MANY = ProgramWorkload(
    name="many",
    kind="throughput",
    size="tiny",
    requests=32,
    batch=8,
    counted="images",
    shapes=({"height": 16, "width": 16}, {"height": 8, "width": 24}),
)
ONE = ProgramWorkload(
    name="one",
    kind="latency",
    size="tiny",
    requests=20,
    batch=2,
    counted="images",
    shapes=({"height": 8, "width": 8},),
)
RUNS = 4 + 6  # of both workloads: the rounds that are asked for, and the least of a latency


def feature(image: np.ndarray) -> np.ndarray:
    """A large common part, as real features have, and the image's own."""
    height, width, _ = image.shape
    parts = [image[y::4, x::4].astype(float).mean() / 255 for y in range(4) for x in range(4)]
    return np.array([100.0 + part for part in parts] + [height / 100, width / 100])


class FakeSide:
    """Answers like a ProgramSide; each batch takes `seconds` on the fake clock. wrong: features of samples
    are those of the neighbour. lies: the same in timed runs only. late: made when they are asked for. stalls:
    the second batch of each run waits for ten seconds. name: of the output."""

    def __init__(self, trial: FakeSides, side: str, seconds: float, wrong: bool = False, lies: bool = False,
                 missing: int = 0, nan: bool = False, late: bool = False, stalls: bool = False,
                 name: str = "features") -> None:  # fmt: skip
        self.trial, self.side, self.seconds, self.name = trial, side, seconds, name
        self.wrong, self.lies, self.missing, self.nan = wrong, lies, missing, nan
        self.late, self.stalls = late, stalls
        self.answers: list[dict[str, np.ndarray]] = []
        self.batches: list[tuple[int, int]] = []

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.trial.log.append((self.side, do))
        return getattr(self, do)(**arguments)

    def sites(self) -> dict[str, Any]:
        return {"sites": {"L1/layer_norm": ["norm"]}}

    def proof(
        self, sites: dict[str, list[str]], requests: list[Any], descriptors: list[int]
    ) -> dict[str, Any]:
        assert len({one["image"].shape for one in self.taken(requests, descriptors)}) == 2
        return {"calls": {"L1/layer_norm": 3}, "site_s": self.seconds / 2, "total_s": 2 * self.seconds}

    def taken(self, requests: list[Any], descriptors: list[int]) -> list[dict[str, Any]]:
        return taken(requests, [os.dup(descriptor) for descriptor in descriptors])

    def answer(self, start: int, requests: list[Any], descriptors: list[int]) -> dict[str, Any]:
        images = [one["image"] for one in self.taken(requests, descriptors)]
        self.trial.now += self.seconds + 10 * (self.stalls and len(images) == start)
        self.batches.append((start, len(images)))
        found = [feature(image) for image in images]
        if self.wrong or (self.lies and len(images) != COUNT):
            found = found[1:] + found[:1]
        if self.nan and not start:
            found[0][0] = float("nan")
        self.answers[start:] = [{self.name: one} for one in found]
        return self.said(start)

    def said(self, start: int) -> dict[str, Any]:
        late = digest({"features": np.zeros(18)})
        said = [late if self.late else digest(one) for one in self.answers[start:]]
        return {"digests": said[: len(said) - self.missing]}

    def outputs(self, chosen: list[int]) -> dict[str, Any]:
        return {"answers": [{k: packed(v) for k, v in self.answers[i].items()} for i in chosen]}

    def finished(self, requests: list[Any], descriptors: list[int]) -> dict[str, Any]:
        outputs, request = self.taken(requests, descriptors)
        assert request["image"].dtype == np.uint8
        return {"answers": [{"features": packed(outputs["features"])}]}

    def stats(self) -> dict[str, Any]:
        return {"engine": {}, "passed_over": {}, "settings": {}}


def run(sides: FakeSides, monkeypatch: pytest.MonkeyPatch, facts: ProgramCorrectness = FACTS) -> Any:
    monkeypatch.setattr(model_module.time, "perf_counter", lambda: sides.now)
    trial = ModelTrial(
        architecture=registry.architecture("siglip2"),
        model="m",
        config="tiny",
        size="tiny",
        answers=ProgramAnswers(facts, "tiny", {}, random.Random(1)),
        workloads=[MANY, ONE],
        candidates=SimpleNamespace(files={"L1/layer_norm": "x.py"}, layers=(), shadowed=lambda: ()),  # type: ignore[arg-type]
        sides=sides,  # type: ignore[arg-type]
        rounds=4,
        extra_s=6.0,
    )
    return trial.run()


def changed(sides: FakeSides, monkeypatch: pytest.MonkeyPatch, change: Any, when: Any) -> None:
    """The candidate's answers of a batch as `change` makes them, digests as well."""
    side = sides.sides["candidate"]
    answer = side.answer

    def other(start: int, requests: list[Any], descriptors: list[int]) -> dict[str, Any]:
        answer(start, requests, descriptors)
        if when(len(requests)):
            change(side.answers, start)
        return side.said(start)

    monkeypatch.setattr(side, "answer", other)


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
    assert sides.changes == [{"max_batch": 2}, {"noise": ("layer_norm",)}, {"noise": ("dense_attention",)}]
    assert len(result.noise_d) == 3
    assert len(result.d) == COUNT + RUNS * AUDITED, "of every round of both"
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
        assert [side.batches[i : i + 4] for i in range(len(side.batches))].count(
            [(0, 8), (8, 8), (16, 8), (24, 8)]
        ) == 4
        assert side.batches.count((18, 2)) >= 4


@pytest.mark.parametrize(("seconds", "batches"), [(0.1, 4), (0.4, 3), (2.0, 2)])
def test_a_warm_up_captures_and_stops_where_it_takes_long(seconds, batches, monkeypatch):
    sides = FakeSides(FakeSide, seconds=seconds)
    monkeypatch.setattr(model_module.time, "perf_counter", lambda: sides.now)
    side = sides.sides["candidate"]
    ProgramAnswers(FACTS, "tiny", {}, random.Random(1)).warm_up(side, MANY)
    assert side.batches == [(0, 8)] * batches


def test_answers_that_are_made_after_the_clock_has_stopped_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.001, late=True), monkeypatch)
    assert "TAMPERED(late-answer): answer " in result.failure.message


def test_a_wrong_candidate_is_invalid(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, wrong=True), monkeypatch)
    assert not result.valid
    assert result.correctness < 0.3


@pytest.mark.parametrize("facts", [FACTS, FINISHED])
def test_being_right_only_while_compared_does_not_help(facts, monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, lies=True), monkeypatch, facts)
    assert not result.valid
    assert max(result.d[:COUNT]) < 1e-6 < 0.5 < max(result.d[COUNT:])


def test_outputs_that_are_not_numbers_count_as_unrelated(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, nan=True), monkeypatch)
    assert result.d[0] == 1.0
    assert max(result.d[1:COUNT]) < 1e-6
    assert result.correctness < 1


@pytest.mark.parametrize("shape", [(17,), (18, 1), ()])
def test_outputs_of_another_shape_count_as_unrelated(shape, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)

    def change(answers: list[Any], start: int) -> None:
        if start == 0:
            answers[0] = {"features": np.resize(answers[0]["features"], shape)}

    changed(sides, monkeypatch, change, lambda count: True)
    result = run(sides, monkeypatch)
    assert result.d[0] == 1.0
    assert max(result.d[1:COUNT]) < 1e-6


def test_the_baseline_finishes_what_was_timed(monkeypatch):
    """A decoder that makes right images of any latents is not asked."""
    sides = FakeSides(FakeSide, seconds=0.2)
    result = run(sides, monkeypatch, FINISHED)
    assert result.valid
    assert len(result.d) == COUNT + 2 * RUNS
    assert sides.log.count(("baseline", "finished")) == COUNT + 2 * 2 * RUNS
    assert sides.log.count(("candidate", "finished")) == COUNT


def test_timed_outputs_of_another_shape_are_not_finished(monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.2)

    def change(answers: list[Any], start: int) -> None:
        answers[start:] = [{"features": one["features"][:-1]} for one in answers[start:]]

    changed(sides, monkeypatch, change, lambda count: count != COUNT)
    result = run(sides, monkeypatch, FINISHED)
    assert result.d[COUNT:] == (1.0,) * 2 * RUNS
    assert not result.valid
    assert sides.log.count(("baseline", "finished")) == COUNT + 2 * RUNS, "the baseline's own alone"


def test_outputs_of_other_names_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, name="logits"), monkeypatch)
    message = "garbled answer to 'outputs': answers are not by the names features"
    assert result.failure.message == message


@pytest.mark.parametrize("do", ["outputs", "finished"])
@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"answers": None},
        {"answers": []},
        {"answers": [{"features": packed(np.ones(3))}] * 99},
        {"answers": [{"features": [1.0]}] * 8},
        {"answers": [{"features": {**packed(np.ones(18)), "shape": [7, 3]}}]},
        {"answers": [{"features": {"shape": [10**30], "dtype": "<f4", "data": ""}}]},
        {"answers": [{"features": {"shape": [0], "dtype": "O", "data": ""}}]},
    ],
)
def test_what_are_no_outputs_is_a_failure(do, reply, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    monkeypatch.setattr(sides.sides["candidate"], do, lambda **arguments: reply)
    assert run(sides, monkeypatch, FINISHED).failure.message.startswith(f"garbled answer to '{do}': ")


@pytest.mark.parametrize("said", [{}, {"digests": 32}, {"digests": [0] * 32}, {"answers": 32}])
def test_what_are_no_digests_is_a_failure(said, monkeypatch):
    sides = FakeSides(FakeSide, seconds=0.1)
    monkeypatch.setattr(sides.sides["candidate"], "answer", lambda **arguments: said)
    assert run(sides, monkeypatch).failure.message.startswith("garbled answer to 'answer': ")


def test_missing_answers_are_a_failure(monkeypatch):
    result = run(FakeSides(FakeSide, seconds=0.1, missing=1), monkeypatch)
    assert result.failure.message == "asked for 8 answers, got 7"


def test_inputs_are_fresh_and_have_the_asked_shapes():
    answers = ProgramAnswers(FACTS, "tiny", {}, random.Random(2))
    first, second = answers.inputs(MANY), answers.inputs(MANY)
    assert [one["image"].shape for one in first[:3]] == [(16, 16, 3), (8, 24, 3), (16, 16, 3)]
    assert len({one["image"].tobytes() for one in first + second}) == 64


def test_facts_that_are_refused():
    with pytest.raises(ValueError, match="9 images are no whole number of batches of 2"):
        ProgramWorkload(**{**ONE.model_dump(), "requests": 9})
    with pytest.raises(ValueError, match="3 samples do not show 2 shapes twice each"):
        ProgramSamples(count=3, shapes=MANY.shapes)
