"""What a report says of the judge's own observations."""

from dataclasses import replace

import pytest

from fastkernels.measure.stats import Interval
from fastkernels.runner.kernel_trial.blocks import Blocks
from fastkernels.runner.kernel_trial.claim_checks import Slack, understated
from fastkernels.runner.kernel_trial.rows import integrity
from fastkernels.runner.kernel_trial.sampling import Sampled
from fastkernels.runner.worker.reading import Reading


def reading(us: float, beyond_us: float, walk_us: float | None = None) -> Reading:
    ns = int(1e3 * us)
    walk_ns = None if walk_us is None else int(1e3 * walk_us)
    return Reading(ns, ns, ns + int(1e3 * beyond_us), True, None, 1, (), {}, {}, walk_ns=walk_ns)


def blocks(sides: tuple[Reading, Reading, Reading], count: int) -> Blocks:
    found = Blocks()
    for index in range(count):
        found.add(index, sides[1], sides[0], sides[2])
    return found


def sampled(hidden_us: float, count: int = 30) -> Sampled:
    """C claims 100 us and hides some, A and A' take as long; their windows are 2 us apart."""
    timed = reading(100, 288 + hidden_us), reading(100, 286), reading(100, 288)
    alone = reading(3.0, 1), reading(2.9, 1), reading(3.1, 1)
    half = reading(2, 1, walk_us=20), reading(2, 1, walk_us=30), reading(2, 1, walk_us=31)
    one = Interval(1.0, 1.0, 1.0, count)
    return Sampled(blocks(timed, count), blocks(alone, 5), blocks(half, 5), one, "converged")


def test_what_windows_links_alone_and_walks_were_on_all_three_sides() -> None:
    found = integrity(sampled(hidden_us=1.5), Slack(2_500, share=0.01), looks=(1, 30))
    assert found is not None
    assert found.beyond_us == pytest.approx((289.5, 286, 288))
    assert found.hidden_us == pytest.approx(1.5)
    assert found.may_hide_us == pytest.approx(4.5), "and what the baselines differ by"
    assert found.alone_us == pytest.approx((3.0, 2.9, 3.1))
    assert found.walk_us == pytest.approx((20, 30, 31))
    assert found.looks == (1, 30)


@pytest.mark.parametrize(
    ("hidden_us", "share", "accused"), [(4.4, 0.01, False), (4.6, 0.01, True), (4.6, 0.05, False)]
)
def test_who_hides_more_than_the_report_says_that_one_may_is_accused(hidden_us, share, accused) -> None:
    one, slack = sampled(hidden_us), Slack(2_500, share=share)
    found = integrity(one, slack)
    assert found is not None
    assert (found.hidden_us > found.may_hide_us) is accused
    told = understated(one.blocks.c, (one.blocks.a, one.blocks.a2), slack)
    assert (told is not None) is accused


def test_few_calls_and_single_links_have_no_figures() -> None:
    assert integrity(sampled(0, count=5), Slack(1)) is None
    lone = replace(sampled(0), alone=Blocks(), half=Blocks())
    found = integrity(lone, Slack(1))
    assert found is not None
    assert found.alone_us is found.walk_us is None
