"""score/timed_tokens.py: a text against the baseline forced along it, and texts that repeat themselves."""

import pytest

from fastkernels.score import timed_tokens
from fastkernels.score.timed_tokens import Said


def said(tokens: list[int], gaps: list[float]) -> Said:
    """Token i is so much less likely than the best, 99 where it is not the token itself."""
    argmax = [99 if gap else token for token, gap in zip(tokens, gaps)]
    tops = [
        {str(best): -1.0, str(token): -1.0 - gap, "50": -4.0}
        for best, token, gap in zip(argmax, tokens, gaps)
    ]
    return Said(tokens, argmax, tops)


def test_a_near_tie_costs_its_own_position():
    assert timed_tokens.discrepancy(said([1, 2, 3, 4], [0, 0.1, 0, 0]), doubt=0.5) == 0.25


def test_behind_a_token_that_nobody_would_say_none_is_right():
    assert timed_tokens.discrepancy(said([1, 2, 3, 4], [0, 0.6, 0, 0]), doubt=0.5) == 0.75
    assert timed_tokens.discrepancy(said([1, 2, 3, 4], [0.6, 0, 0, 0]), doubt=0.5) == 1.0


def test_a_token_that_is_not_listed_is_as_far_off_as_the_last():
    text = Said([7, 8], [1, 8], [{"1": -0.5, "2": -2.5}, {"8": -0.5}])
    assert text.gaps() == [2.0, 0.0]


def test_doubt_is_of_the_spread_or_of_the_noise():
    tops = said([1, 2], [0, 0]).top
    assert timed_tokens.doubt(tops, 0.0) == pytest.approx(1.0)  # a third of 3
    assert timed_tokens.doubt(tops, 0.7) == pytest.approx(1.4)
    assert timed_tokens.doubt([], 0.0) == 0.0


def test_a_text_without_tokens_says_nothing():
    with pytest.raises(ValueError, match="without tokens"):
        timed_tokens.discrepancy(Said([], [], []), 0.5)


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        (list(range(20)), 0.0),
        ([1, 2, 3, 4, 9, 9], 0.0),  # seen twice: nobody knows yet
        ([1, 2, 3, 4, 9, 9, 9, 9, 9, 9], 0.4),
        ([5, 1, 2, 1, 2, 1, 2, 1, 2, 1], 0.5),
        ([9, 9, 9, 9, 9, 9, 1, 2, 3, 4], 0.0),  # it stopped
        ([3], 0.0),
    ],
)
def test_what_repeats_at_the_end(tokens, share):
    assert timed_tokens.repeated(tokens) == pytest.approx(share)
