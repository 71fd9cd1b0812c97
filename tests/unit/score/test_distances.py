"""Every distance with values worked out by hand, and what none of them can take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastkernels.errors import NotFoundError, UsageError
from fastkernels.score.distances import TABLE, distances, largest, log_mel


def d(name: str, expected: Any, found: Any, **parameters: Any) -> float:
    (one,) = distances(name, [np.array(expected)], [np.array(found)], **parameters)
    return one


# Features with a large common part: unrelated ones are 1e-4 apart by plain cosine, yet 1 here.
FEATURES = np.array([[100.0, 1.0, 0.0], [100.0, -1.0, 0.0], [100.0, 0.0, 1.0], [100.0, 0.0, -1.0]])
# Channels with large means.
IMAGE = np.array([[100.0 + a, -50.0 + b] for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))])
TURNED = [[100.0 + a, -50.0 + b] for a, b in ((-1, 1), (1, 1), (-1, -1), (1, -1))]
FOUR = [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, -2.0, 0.0]]
HAND = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])  # no mirror image


@pytest.mark.parametrize(("order", "wanted"), [((0, 1, 2, 3), 0.0), ((2, 3, 0, 1), 1.0), ((1, 0, 3, 2), 1.0)])
def test_centred_cosine(order: tuple[int, ...], wanted: float):
    """A cosine of -1 is no worse than one of 0."""
    assert distances("centred_cosine", FEATURES, FEATURES[list(order)]) == pytest.approx([wanted] * 4)


def test_centred_cosine_of_half_a_direction_and_of_none():
    found = [np.array([100.0, 1.0, 1.0]), np.array([100.0, 0.0, 0.0]), FEATURES[2][:2], FEATURES[3]]
    wanted = [1 - 0.5**0.5, 1.0, 1.0, 0.0]
    assert distances("centred_cosine", FEATURES, found) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="1 samples, expected at least two"):
        d("centred_cosine", [1.0], [1.0])


@pytest.mark.parametrize(
    ("name", "expected", "found", "wanted"),
    [
        ("channel_cosine", IMAGE, TURNED, 1.0),
        ("channel_cosine", IMAGE, IMAGE[::-1], 1.0),
        ("channel_cosine", IMAGE, [[102, -50], [102, -50], [98, -50], [98, -50]], 1 - 0.5**0.5),
        ("channel_cosine", [[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5]] * 2, 1.0),  # the mean: no direction
        (
            "channel_cosine",
            IMAGE,
            IMAGE + np.array([1, 0]),
            1 - 8 / (8 * 12) ** 0.5,
        ),  # the reference's mean, not its own
        ("worst_row_cosine", [[1.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [1.0, 1.0]], 1 - 0.5**0.5),
        ("worst_row_cosine", [[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], 0.0),  # padding
        ("worst_row_cosine", [[0.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], 1.0),
        ("relative_l2", [3.0, 4.0], [3.0, 4.5], 0.1),
        ("relative_l2", [3.0, 4.0], [-30.0, 4.5], 1.0),
        ("relative_l2", [0.0, 0.0], [0.0, 0.0], 0.0),
        ("psnr", [1.0, 0.0], [1.001, 0.001], 0.0),  # 60 dB
        ("psnr", [1.0, 0.0], [1.01, 0.01], 0.5),  # 40 dB
        ("psnr", [2.0, 0.0], [2.2, 0.2], 1.0),  # 20 dB of the reference's own peak
        ("rmsd", FOUR, np.array(FOUR) * 1.5, 0.5),
        ("rmsd", HAND, HAND @ [[0, 1, 0], [-1, 0, 0], [0, 0, 1]] + 7, 0.0),  # a quarter turn, elsewhere
        ("rmsd", FOUR, np.zeros((4, 3)), 1.0),
        ("total_variation", np.log([0.5, 0.5]), np.log([0.8, 0.2]) + 3, 0.3),
        ("total_variation", np.log([[0.5, 0.5]] * 2), np.log([[0.5, 0.5], [0.8, 0.2]]), 0.15),
        ("total_variation", [100.0, 0.0], [0.0, 100.0], 1.0),
        ("disagreement", [7, 8, 9, 9], [7, 9, 8, 9], 0.5),
        ("disagreement", [7, 8], [8, 7], 1.0),
        ("kendall_tau", [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 40.0, 30.0], 1 / 3),  # 5 pairs of 6
        ("kendall_tau", [1.0, 2.0, 3.0], [3.0, 2.0, 1.0], 1.0),
        ("kendall_tau", [1.0, 1.0, 2.0], [1.0, 2.0, 3.0], 1 - 2 / 6**0.5),
        ("kendall_tau", [[1.0, 2.0]] * 2, [[1.0, 2.0], [2.0, 2.0]], 0.5),
    ],
)
def test_distances_by_hand(name: str, expected: Any, found: Any, wanted: float):
    assert d(name, expected, expected) == pytest.approx(0.0, abs=1e-7)
    assert d(name, expected, found) == pytest.approx(wanted, abs=1e-7)


def test_a_mirror_image_is_another_molecule():
    assert d("rmsd", HAND, HAND * [-1, 1, 1]) > 0.2


@pytest.mark.parametrize(
    ("expected", "found", "wanted"),
    [
        ([5.0, 4.0, 3.0, 0.0], [5.0, 0.0, 3.0, 4.0], 0.5),
        ([1.0, 0.0, 0.0], [1.0, 2.0, 0.0], 0.5),  # an entry that is not positive is none
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1.0, 0.0], [0.0, 1.0], 1.0),
    ],
)
def test_top_k_overlap(expected: list[float], found: list[float], wanted: float):
    assert d("top_k_overlap", expected, found, k=2) == wanted


def test_mel_cosine():
    """A tone of 1,000 Hz lies at 1,000 mel; 82 corners up to 8,000 Hz are 35.06 mel apart."""
    at_N = np.arange(8000) / 16000
    low, high = (np.sin(2 * np.pi * hz * at_N) * (0.5 + at_N) for hz in (1000, 3000))
    mels_FM = log_mel(low, 16000)
    assert mels_FM.shape == (28, 80)
    assert mels_FM.argmax(axis=1).tolist() == [28] * 28
    assert d("mel_cosine", low, low, sampling_rate=16000) == pytest.approx(0.0, abs=1e-9)
    assert d("mel_cosine", low, high, sampling_rate=16000) > 0.5
    assert d("mel_cosine", low, low[:-1], sampling_rate=16000) == 1.0


BOX = [0.0, 0.0, 10.0, 10.0, 0.8, 1.0]
OTHER = [100.0, 0.0, 110.0, 10.0, 0.4, 2.0]
FREE = [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]


def changed(row: list[float], **values: float) -> list[float]:
    names = ("left", "top", "right", "bottom", "score", "label")
    return [values.get(name, value) for name, value in zip(names, row)]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([BOX, OTHER], 0.0),
        ([OTHER, BOX], 0.0),  # order means nothing
        ([FREE, BOX, OTHER, FREE], 0.0),
        ([changed(BOX, score=0.5), OTHER], 0.15),  # of two matches one is 0.3 off
        ([changed(BOX, right=8.0), OTHER], 0.1),  # IoU 0.8 and 1
        ([BOX], 1 - 2 * 1 * (2 / 3) / (1 + 2 / 3)),  # recall 0.8 / 1.2
        ([BOX, OTHER, changed(OTHER, top=50.0, bottom=60.0)], 1 - 2 * 0.75 / 1.75),  # precision 1.2 / 1.6
        ([BOX, changed(OTHER, label=1.0)], 1 / 3),  # the label is wrong: 0.8 of 1.2 on both sides
        ([BOX, changed(OTHER, left=107.0, right=117.0)], 1 / 3),  # IoU 3 / 17
        ([BOX, BOX, OTHER], 1 - 2 * 0.6 / 1.6),  # the second finds no free box: precision 1.2 / 2
        ([FREE], 1.0),
        ([changed(BOX, score=float("nan")), OTHER], 1.0),
        ([changed(BOX, label=float("nan")), OTHER], 1.0),
        ([changed(BOX, left=float("inf")), OTHER], 1.0),
        ([BOX[:5], OTHER[:5]], 1.0),
        (BOX, 1.0),
        ([changed(BOX, score=-1.0), OTHER], 1.0),
    ],
)
def test_detections(found: list[Any], wanted: float):
    assert d("detections", [BOX, OTHER, FREE], found) == pytest.approx(wanted)


def test_detections_of_nothing():
    none = np.empty((0, 6))
    assert distances("detections", [none, none], [none, np.array([BOX])]) == [0.0, 1.0]
    assert d("detections", [FREE], [FREE]) == 0.0


def test_the_best_overlap_wins_and_boxes_without_extent_match_nothing():
    near, far = changed(BOX, right=9.0), changed(BOX, right=6.0)
    assert d("detections", [far, near], [near, far]) == 0.0
    empty = changed(BOX, right=0.0)
    assert d("detections", [empty], [empty]) == 1.0


PARAMETERS = {"top_k_overlap": {"k": 2}, "rms_error": {"half": 0.1}, "mel_cosine": {"sampling_rate": 16000}}


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"detections"}))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_what_is_not_finite_or_of_another_shape_is_1(name: str, bad: float | None):
    rng = np.random.default_rng(1)
    shape = (2000,) if name == "mel_cosine" else (5, 3)
    expected = rng.normal(size=(2, *shape))
    found = [one.copy() for one in expected]
    if bad is None:
        found[0] = found[0][1:]
    else:
        found[0].flat[4] = bad
    first, second = distances(name, expected, found, **PARAMETERS.get(name, {}))
    assert first == 1.0
    assert second == pytest.approx(0.0, abs=1e-7)


def test_logits_are_compared_by_what_is_left_without_the_mean_of_all_samples():
    """A value alone has a distance too, and requests may have different numbers of rows."""
    expected = [np.array([101.0]), np.array([99.0, 101.0, 99.0])]  # their mean is 100, their spread 1
    found = [np.array([101.25]), np.array([99.0, 101.0, 99.0 + 0.5 * 3**0.5])]
    assert distances("centred_l2", expected, found) == pytest.approx([0.25, 0.5])
    assert distances("centred_l2", expected, [np.array([101.0]), np.zeros(2)]) == [0.0, 1.0]
    same = [np.array([7.0]), np.array([7.0])]
    assert distances("centred_l2", same, [same[0], np.array([7.001])]) == [0.0, 1.0]


def test_a_scale_is_the_distance_of_what_is_unrelated():
    assert d("relative_l2", [1.0], [1.01], scale=0.02) == pytest.approx(0.5)
    assert d("rms_error", [9.0, 1.0], [9.0, 1.1], half=0.1) == pytest.approx(1 / (1 + 2**0.5))
    assert d("relative_l2", [1.0], [1.5], scale=0.02) == 1.0
    for scale in (0.0, 2.0):
        with pytest.raises(UsageError, match="at most 1"):
            d("relative_l2", [1.0], [1.0], scale=scale)


def test_a_sample_is_as_far_off_as_its_worst_output():
    chosen = [
        ("x", "relative_l2", {}),
        ("y", "relative_l2", {"scale": 1.0}),
        ("y", "top_k_overlap", {"k": 1}),
    ]
    expected = [{"x": np.array([1.0]), "y": np.array([1.0, 0.0])}] * 2
    found = [
        {"x": np.array([1.25]), "y": np.array([1.0, 0.0])},
        {"x": np.array([1.25]), "y": np.array([0.0, 1.0])},
    ]
    assert largest(chosen, expected, found) == [0.25, 1.0]


def test_wrong_names_parameters_and_numbers_of_samples():
    with pytest.raises(NotFoundError, match="relative_l2"):
        d("relative_l1", [1.0], [1.0])
    with pytest.raises(UsageError, match=r"distance top_k_overlap: .*missing"):
        d("top_k_overlap", [1.0], [1.0])
    with pytest.raises(ValueError, match="1 outputs against 2"):
        distances("relative_l2", FEATURES[:2], FEATURES[:1])
