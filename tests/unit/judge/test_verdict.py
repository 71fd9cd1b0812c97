"""When a speed-up counts as a win or a loss."""

import pytest

from fastkernels.judge.verdict import Speedup


def speedup(low: float, high: float, noise_pct: float) -> Speedup:
    return Speedup(
        ratio=(low + high) / 2,
        low=low,
        high=high,
        baseline_us=10.0,
        candidate_us=10.0,
        baseline_p20_p80_us=(9.9, 10.1),
        candidate_p20_p80_us=(9.9, 10.1),
        noise_pct=noise_pct,
        samples=30,
        dropped=0,
    )


@pytest.mark.parametrize(
    ("low", "high", "noise_pct", "significant"),
    [
        (1.021, 1.03, 2.0, True),
        (1.019, 1.03, 2.0, False),  # as far as the two baseline processes differ
        (0.95, 0.97, 2.0, True),
        (0.95, 0.99, 2.0, False),
        (0.9956, 0.9971, 0.13, False),  # seen of identical code: a pair that happened to agree
        (1.006, 1.007, 0.13, False),
        (1.011, 1.012, 0.13, True),
    ],
)
def test_a_win_or_loss_exceeds_the_noise(low, high, noise_pct, significant) -> None:
    assert speedup(low, high, noise_pct).significant is significant
