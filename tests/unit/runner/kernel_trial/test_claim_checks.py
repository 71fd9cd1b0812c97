"""A worker's account of its time against the judge's."""

import random
from dataclasses import replace

import pytest

from fastkernels.runner.kernel_trial import claim_checks
from fastkernels.runner.kernel_trial.blocks import Blocks
from fastkernels.runner.kernel_trial.trial import SLACK, SLACK_ON_CPU
from fastkernels.runner.worker.process import Standing
from fastkernels.runner.worker.reading import Reading

ASKED = SLACK["host"]


def reading(ns: int, window_ns: int, threads: int = 1) -> Reading:
    return Reading(ns, ns, window_ns, True, None, threads, (), {}, {})


def side(
    true_us: float, claimed_us: float, count: int = 50, late_us: float = 0, seed: int = 1
) -> list[Reading]:
    """Readings of calls that take `true_us`; messages cost 60 us, and some answers come late."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        messages_us = 60 + rng.random() * 20 + (rng.random() < 0.4) * rng.random() * late_us
        found.append(reading(int(claimed_us * 1e3), int((true_us + messages_us) * 1e3)))
    return found


def test_a_duration_beyond_the_window_is_impossible() -> None:
    assert claim_checks.impossible(reading(100, 99)).status == "IMPLAUSIBLE"
    assert claim_checks.impossible(reading(99, 99)) is None


@pytest.mark.parametrize(
    ("true_us", "claimed_us"), [(1000, 500), (1000, 100), (1000, 900), (200, 20), (10_000, 7000), (50, 10)]
)
def test_work_outside_the_claimed_time_shows(true_us: float, claimed_us: float) -> None:
    baselines = [side(1000, 1000, late_us=3000, seed=seed) for seed in (2, 3)]
    verdict = claim_checks.understated(side(true_us, claimed_us, late_us=3000), baselines, ASKED)
    assert verdict.status == "IMPLAUSIBLE"
    assert "not timed" in verdict.failure.message


@pytest.mark.parametrize("true_us", [5, 100, 1000, 10_000])
def test_an_honest_candidate_on_a_busy_machine_is_not_accused(true_us: float) -> None:
    """Its answers come late more often, and later, than the baseline's."""
    honest = side(true_us, true_us, late_us=20_000)
    assert (
        claim_checks.understated(honest, [side(1000, 1000, late_us=100, seed=seed) for seed in (2, 3)], ASKED)
        is None
    )


def test_sides_that_are_all_late_are_not_accused() -> None:
    """More work than cores: every window waits, and the lowest tenth of 30 is luck."""

    def late(rng: random.Random) -> list[Reading]:
        return [reading(50_000, int(110_000 + rng.expovariate(1 / 300_000))) for _ in range(30)]

    for seed in range(100):
        rng = random.Random(seed)
        assert claim_checks.understated(late(rng), [late(rng), late(rng)], ASKED) is None


def delayed(readings: list[Reading], late_us: float) -> list[Reading]:
    """All of a process's answers come later."""
    return [replace(r, window_ns=r.window_ns + int(1e3 * late_us)) for r in readings]


def test_a_win_that_the_windows_would_take_away_is_none_where_baseline_processes_differ_as_much() -> None:
    baselines = [side(2500, 2500, seed=2), delayed(side(2500, 2500, seed=3), 1000)]
    liar = delayed(side(2500, 300), 1000)
    assert claim_checks.understated(liar, [baselines[0], delayed(baselines[1], 1500)], ASKED) is None
    assert "differ by as much" in str(claim_checks.unproven(liar, baselines, ASKED))
    assert claim_checks.unproven(delayed(side(300, 300), 1000), baselines, ASKED) is None
    assert claim_checks.unproven(side(2600, 2600, late_us=4000), baselines, ASKED) is None, "no win"


def on_a_cpu(true_us: float, claimed_us: float, seed: int = 1) -> list[Reading]:
    """1.2 ms of messages and copies surround the call, as in a group."""
    return delayed(side(true_us, claimed_us, late_us=20, seed=seed), 1140)


@pytest.mark.parametrize(("late_us", "accused"), [(250, False), (900, True)])
def test_what_surrounds_a_call_on_a_cpu_is_colder_behind_more_memory(late_us: int, accused: bool) -> None:
    baselines = [on_a_cpu(1400, 1400, seed) for seed in (2, 3)]
    honest = delayed(on_a_cpu(1400, 1400), late_us)
    assert claim_checks.understated(honest, baselines, SLACK_ON_CPU._replace(colder=0)) is not None
    found = claim_checks.understated(honest, baselines, SLACK_ON_CPU)
    assert (found is not None) is accused


def test_who_is_slower_on_a_busy_cpu_may_wait_for_what_it_loses() -> None:
    """As a call of 3 ms that lost its core before it answered, beside a baseline of 50 us."""
    baselines = [side(50, 50, seed=seed) for seed in (2, 3)]
    assert claim_checks.understated(delayed(side(3200, 3200), 1300), baselines, SLACK_ON_CPU) is None
    assert claim_checks.understated(side(2100, 210), baselines, SLACK_ON_CPU) is not None


def test_nobody_wins_by_what_may_be_colder_surroundings() -> None:
    baselines = [on_a_cpu(1400, 1400, seed) for seed in (2, 3)]
    liar = on_a_cpu(1400, 1100)
    assert claim_checks.understated(liar, baselines, SLACK_ON_CPU) is None
    assert claim_checks.unproven(liar, baselines, SLACK_ON_CPU) is not None


def test_a_few_readings_accuse_nobody() -> None:
    assert claim_checks.understated(side(1000, 10, count=5), [side(1000, 1000, count=5)], ASKED) is None


def blocks(candidate_us: float, baseline_us: float, scatter: float = 0.1, count: int = 7) -> Blocks:
    """Readings whose durations scatter as those of single cold calls do."""
    rng, found = random.Random(3), Blocks()
    for index in range(count):
        a, c, a2 = (
            reading(int(1e3 * us * (1 + scatter * (rng.random() - 0.5))), 10**6)
            for us in (baseline_us, candidate_us, baseline_us)
        )
        found.add(index, a, c, a2)
    return found


def test_one_link_that_does_the_work_of_all_is_found() -> None:
    """20 us alone on both sides; 64 calls at once take little longer than one."""
    verdict = claim_checks.shared_work(blocks(20, 20), blocks(1.5, 18, count=30))
    assert verdict.status == "IMPLAUSIBLE"
    assert "each other's work" in verdict.failure.message


@pytest.mark.parametrize(
    ("ours", "ours_chained", "theirs", "theirs_chained"),
    [
        (3.2, 1.84, 3.3, 1.84),  # the same kernel
        (3.4, 1.0, 3.3, 1.9),  # twice as fast, and as slow to start
        (9.0, 5.0, 22.0, 20.0),  # four times as fast, with more code to fetch
        (40.0, 44.0, 44.0, 45.0),
        (4.8, 3.0, 3.2, 1.9),  # slower: two kernels
        (11.6, 8.4, 3.3, 1.7),  # several, as seen on an H100
        (8.1, 5.2, 4.3, 2.7),
        (43.6, 40.4, 6.2, 5.5),  # many kernels, as seen of a plain reference on an H200
        (15.8, 12.1, 2.9, 1.9),
    ],
)
def test_honest_calls_lose_their_chain_as_the_baseline_does(ours, ours_chained, theirs, theirs_chained):
    assert (
        claim_checks.shared_work(blocks(ours, theirs), blocks(ours_chained, theirs_chained, count=30)) is None
    )


def test_slow_calls_that_share_their_work_are_seen_too() -> None:
    assert claim_checks.shared_work(blocks(60, 8), blocks(10, 8, count=30)).status == "IMPLAUSIBLE"


def test_short_calls_that_share_their_work_are_seen_too() -> None:
    assert claim_checks.shared_work(blocks(5.5, 5.5), blocks(1.5, 4, count=30)).status == "IMPLAUSIBLE"


def halves(candidate_us: float, baseline_us: float, count: int = claim_checks.MIN_PARTS) -> Blocks:
    """With walks that take so long."""
    found = blocks(2, 2, count=count)
    for side, us in ((found.c, candidate_us), (found.a, baseline_us), (found.a2, 1.02 * baseline_us)):
        for index, one in enumerate(side):
            side[index] = replace(one, walk_ns=int(1e3 * us * (0.97 + 0.02 * (index % 4))))
    return found


def test_calls_that_fetch_for_others_are_found() -> None:
    verdict = claim_checks.fetched(halves(30, 40))
    assert (verdict.status, verdict.kind) == ("TAMPERED", "fetch")
    assert "arguments of calls that did not run" in verdict.failure.message


def test_calls_that_write_results_of_others_are_found() -> None:
    verdict = claim_checks.strayed(replace(reading(1, 2), strayed=True))
    assert (verdict.status, verdict.kind) == ("TAMPERED", "ahead")
    assert claim_checks.strayed(reading(1, 2)) is None


@pytest.mark.parametrize("candidate_us", [38, 42, 80])
def test_a_walk_that_takes_as_long_as_the_baselines_tells_nothing(candidate_us: float) -> None:
    assert claim_checks.fetched(halves(candidate_us, 40)) is None


def test_few_walks_tell_nothing_nor_does_a_chain_that_nobody_walked_through() -> None:
    assert claim_checks.fetched(halves(10, 40, count=2)) is None
    assert claim_checks.fetched(blocks(2, 2)) is None


def test_two_calls_alone_tell_nothing() -> None:
    assert claim_checks.shared_work(blocks(20, 20, count=2), blocks(1, 18, count=30)) is None


@pytest.mark.parametrize(("share", "late_us"), [(0.7, 30), (0.85, 3000), (0.95, 3000)])
def test_who_is_honest_now_and_then_is_found_as_well(share: float, late_us: float) -> None:
    """A speed-up is a median: it has nothing of the calls that are claimed as they are."""
    baselines = [side(1000, 1000, late_us=late_us, seed=seed) for seed in (2, 3)]
    honest, late = side(1000, 1000, late_us=late_us), side(1000, 500, late_us=late_us)
    rng = random.Random(4)
    some = [b if rng.random() < share else a for a, b in zip(honest, late)]
    assert claim_checks.understated(some, baselines, ASKED).status == "IMPLAUSIBLE"


def test_another_number_of_threads_than_was_set_is_tampering() -> None:
    one, four = reading(1000, 2000, threads=1), reading(1000, 2000, threads=4)
    assert claim_checks.other_settings(one, one) is None
    verdict = claim_checks.other_settings(four, one)
    assert verdict.label == "TAMPERED(threads)"
    assert "set to 4" in verdict.failure.message


def test_baselines_that_differ_widen_what_is_believed() -> None:
    """One of them found a faster way through this machine's scheduler than the other and the candidate."""
    slow, fast = side(1000, 1000, seed=2), side(940, 1000, seed=3)
    honest = side(50, 50)
    assert claim_checks.understated(honest, [slow, fast], ASKED) is None
    assert claim_checks.understated(side(90, 50), [slow, fast], ASKED) is None
    assert claim_checks.understated(side(90, 50), [slow, slow], ASKED).status == "IMPLAUSIBLE"


def test_a_stopped_process_that_runs_is_tampering() -> None:
    assert claim_checks.restless(None) is None
    verdict = claim_checks.restless("was continued")
    assert verdict.label == "TAMPERED(pause)"
    assert "the process was continued while it was stopped" in verdict.failure.message


def test_a_baseline_that_somebody_stops_is_tampering_and_one_that_stops_late_is_not() -> None:
    assert claim_checks.disturbed(None, None) is None
    verdict = claim_checks.disturbed("was stopped in its turn", None)
    assert verdict.label == "TAMPERED(baseline)"
    assert "was stopped in its turn" in verdict.failure.message
    slow = claim_checks.disturbed(None, "did not stop within 10 s")
    assert slow.label == "INVALID_BASELINE"


def test_settings_of_the_process_are_compared_by_name() -> None:
    ours, theirs = (replace(reading(1, 2), flags=flags) for flags in ({"dtype": "a"}, {"dtype": "b"}))
    assert claim_checks.other_settings(theirs, theirs) is None
    verdict = claim_checks.other_settings(ours, theirs)
    assert verdict.label == "TAMPERED(global-state)"
    assert "dtype is a, not b" in verdict.failure.message


def test_a_baseline_that_is_scheduled_otherwise_is_told() -> None:
    before = Standing(frozenset({0, 1}), 0, 0)
    assert claim_checks.moved(before, before) is None
    assert claim_checks.moved(before, before._replace(nice=19)).label == "TAMPERED(baseline)"
