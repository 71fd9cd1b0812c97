"""Which element of a wrong result a failure names."""

import pytest
import torch

from fastkernels.judge import compare, rules

from .conftest import D, T


def located(trial, candidate):
    """As the referee asks: the gate looks again, with nothing that the inputs excuse."""
    standard = compare.Standard(trial.baseline, trial.oracle)
    found = standard.compare({"out.0": candidate})
    moves = {"out.0": [standard.distances(trial.baseline)["out.0"]]}
    found = standard.loosened(found, standard.excuses(moves))
    return compare.located(found, {"out.0": candidate}, trial.oracle)


def test_the_worst_element_of_the_worst_row(trial):
    spoiled = trial.baseline["out.0"].clone()
    spoiled[3, 1] += 0.25
    spoiled[3, 5] += 1
    verdict = located(trial, spoiled)
    assert verdict.label == "WRONG(value)"
    place = verdict.failure.place
    assert (place.output, place.index, place.elements) == ("out.0", (3, 5), T * D)
    assert float(place.expected) == pytest.approx(float(trial.oracle["out.0"][3, 5]), rel=1e-5)
    assert float(place.got) == pytest.approx(float(spoiled[3, 5]), rel=1e-5)
    assert 0 < place.allowed < 0.25
    assert place.beyond >= 2
    for told in ("row 3", "out.0[3, 5]", place.expected, place.got, f"of {T * D} elements"):
        assert told in str(place)


def test_a_result_that_is_wrong_everywhere(trial):
    verdict = located(trial, -trial.baseline["out.0"])
    assert verdict.failure.place.beyond > 0.9 * T * D


def test_the_first_element_that_is_not_finite(trial):
    spoiled = trial.baseline["out.0"].clone()
    spoiled[2, 7] = spoiled[4, 0] = torch.nan
    place = located(trial, spoiled).failure.place
    assert (place.index, place.got, place.beyond) == ((2, 7), "nan", 2)


def test_integers_and_copies():
    right = torch.arange(12).view(3, 4)
    wrong = right.clone()
    wrong[1, 2] = 99
    integers = compare.Standard({"out.0": right}, {"out.0": right}).compare({"out.0": wrong})
    copies = rules.exact({"out.0": wrong}, {"out.0": right})
    for found in (integers, copies):
        place = found.verdict.failure.place
        assert (place.index, place.expected, place.got, place.beyond) == ((1, 2), "6", "99", 1)


def test_a_token_of_a_pool_is_named_where_it_lies():
    full = torch.zeros(5, 16, 2, 3)
    judged = rules.as_judged({"arg.key_cache": full}, ["arg.key_cache"], [])["arg.key_cache"]
    wrong = judged.clone()
    wrong[17, 1, 2] = 1
    place = rules.exact({"arg.key_cache": wrong}, {"arg.key_cache": judged}).verdict.failure.place
    assert rules.of_call(place, full, ["arg.key_cache"], []).index == (2, 1, 1, 2)
