"""What looks say, and what several of them prove: properties, and the examples that people ask about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastkernels.gate import verdicts
from fastkernels.records import LEAST_NOISE, Contract, GateLimits, GateRow, Look, least_noise

LIMITS = GateLimits(max_regression_pct=3.0, min_regression_us=0.3)
UNKNOWN = Look(problem="UNSTABLE: the interval is still 9 % wide")
LOST = UNKNOWN.model_copy(update={"lost": "the head cannot be captured"})


def look(
    change: float,
    half: float = 0.002,
    noise: float = 1.0,
    base_us: float = 100.0,
    contract: Contract = "host",
    waits: bool = False,
) -> Look:
    """A look at a head that takes `change` of the base's time longer, known to +- `half`."""
    speedup = 1 / (1 + change)
    return Look(
        speedup=speedup, speedup_ci=(1 / (1 + change + half), 1 / (1 + change - half)), base_us=base_us,
        head_us=base_us * (1 + change), noise_pct=noise, samples=50, contract=contract, waits=waits,
    )  # fmt: skip


changes = st.floats(-0.5, 2.0)
halves = st.floats(0.0, 0.2)
noises = st.floats(0.0, 15.0)
bases = st.floats(1.0, 1e5)
contracts = st.sampled_from(["graph", "eager", "host"])
looks = st.one_of(st.just(UNKNOWN), st.just(LOST), st.builds(look, changes, halves, noises, bases, contracts))
SLOW, SAME, FAST, UNSURE = look(0.1), look(0.0), look(-0.1), look(0.03, half=0.01)


def wide(change: float, half: float, noise: float) -> Look:
    """A look that `fk kernels` would call UNSTABLE."""
    return look(change, half, noise).model_copy(update={"unstable": True})


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (look(0.05), "slow"),
        (look(0.02), "same"),  # below the relative threshold
        (look(-0.05), "fast"),
        (look(0.05, noise=6), "same"),  # within the noise
        (look(0.2, base_us=1.0), "same"),  # 0.2 us: below the absolute threshold
        (look(0.2, base_us=2.0), "slow"),  # 0.4 us
        (look(0.03, half=0.01), "unsure"),
        (look(0.0, half=0.05), "unsure"),
        (look(0.05, contract="graph"), "slow"),
        (look(0.05, contract="eager"), "same"),  # identical code reads 0.94 to 1.08 there
        (look(0.075, contract="eager"), "same"),
        (look(-0.05, contract="eager"), "same"),
        (look(0.1, contract="eager"), "slow"),
        (look(0.5, contract="eager", waits=True), "unsure"),  # the host's work is in it
        (look(-0.5, contract="eager", waits=True), "unsure"),
        (UNKNOWN, "unsure"),
        (wide(1.16, half=0.6, noise=40), "slow"),  # +56 to +176 %
        (wide(-0.54, half=0.2, noise=40), "fast"),
        (wide(-0.54, half=0.1, noise=120), "unsure"),  # noise of 2.2 times hides 1.8 times
        (look(-0.6, half=0.02, noise=120), "fast"),  # a head is never 120 % faster
        (wide(0.0, half=0.2, noise=40), "unsure"),  # within the noise, and yet no proof
        (look(0.0, half=0.2, noise=40), "same"),
    ],
)
def test_one_look(seen: Look, kind: str) -> None:
    assert verdicts.kind(seen, LIMITS) == kind


@pytest.mark.parametrize(
    ("seen", "verdict", "wanted"),
    [
        ([SAME], "SAME", 1),
        ([FAST, FAST], "FAST", 2),
        ([FAST, SAME], "SAME", 2),
        ([FAST, SLOW, UNSURE], "AMBIGUOUS", 3),
        ([SLOW, SLOW], "SLOW", 2),
        ([SLOW, UNSURE, SLOW], "SLOW", 3),
        ([UNSURE, SLOW, SLOW], "SLOW", 3),
        ([SLOW, SAME, SAME], "SAME", 3),
        ([SLOW, SAME, SLOW], "AMBIGUOUS", 3),
        ([UNSURE, SAME, FAST], "SAME", 3),
        ([UNSURE, UNSURE, SLOW], "AMBIGUOUS", 3),
        ([UNKNOWN, UNKNOWN, UNKNOWN], "AMBIGUOUS", 3),
        ([wide(-0.54, 0.2, 40), wide(-0.5, 0.2, 30)], "FAST", 2),
        ([wide(1.16, 0.6, 40), UNKNOWN, SLOW], "SLOW", 3),
        ([wide(0.0, 0.2, 40)] * 3, "AMBIGUOUS", 3),
        ([LOST, LOST], "BROKEN", 2),
        ([LOST, UNSURE, LOST], "BROKEN", 3),
        ([LOST, SAME, SAME], "AMBIGUOUS", 3),
        ([SLOW, LOST, SLOW], "AMBIGUOUS", 3),
    ],
)
def test_several_looks(seen: list[Look], verdict: str, wanted: int) -> None:
    found, reason = verdicts.settle(seen, LIMITS)
    assert found == verdict
    assert reason
    assert verdicts.wanted(seen, LIMITS) == wanted


GRAPH_SLOW, GRAPH_SAME = look(0.05, contract="graph"), look(0.0, contract="graph")
EAGER_SLOW, EAGER_SAME = look(0.5, contract="eager"), look(0.0, contract="eager")


@pytest.mark.parametrize(
    ("seen", "verdict", "wanted"),
    [
        ([EAGER_SLOW, EAGER_SLOW], "SLOW", 2),
        ([GRAPH_SLOW, EAGER_SLOW, GRAPH_SLOW], "SLOW", 3),
        ([GRAPH_SLOW, EAGER_SAME, GRAPH_SLOW], "SLOW", 3),  # within 8 % in `eager` denies no 5 % in a graph
        (
            [GRAPH_SLOW, EAGER_SLOW, EAGER_SLOW],
            "AMBIGUOUS",
            3,
        ),  # one look of the row's contract proves nothing
        ([EAGER_SLOW, GRAPH_SAME, GRAPH_SAME], "SAME", 3),
    ],
)
def test_looks_under_two_contracts_neither_agree_nor_deny(
    seen: list[Look], verdict: str, wanted: int
) -> None:
    found, reason = verdicts.settle(seen, LIMITS)
    assert (found, verdicts.wanted(seen, LIMITS)) == (verdict, wanted)
    assert verdicts.middle(seen).contract == (
        "graph" if GRAPH_SLOW in seen or GRAPH_SAME in seen else "eager"
    )
    if found == "AMBIGUOUS":
        assert "what was timed under eager is not compared with graph" in reason


def test_a_head_that_waits_says_why_nothing_is_claimed() -> None:
    found, reason = verdicts.settle([look(0.5, contract="eager", waits=True)] * 3, LIMITS)
    assert found == "AMBIGUOUS"
    assert "the head waits for the device" in reason


@pytest.mark.parametrize("contract", ["graph", "host", "eager"])
def test_the_limit_is_never_below_what_the_judge_takes_for_noise(contract: Contract) -> None:
    """So the judge of `fk kernels` and the gate claim a change alike."""
    strict = GateLimits(max_regression_pct=0.0, min_regression_us=0.0)
    seen = look(0.0, noise=0.1, contract=contract)
    assert verdicts.limit(seen, strict) == LEAST_NOISE[contract]
    single = seen.model_copy(update={"links": 1})
    assert verdicts.limit(single, strict) == least_noise(contract, 1) >= LEAST_NOISE[contract]


def test_only_a_first_look_without_a_change_is_enough() -> None:
    assert verdicts.wanted([], LIMITS) == 1
    assert [verdicts.wanted([one], LIMITS) > 1 for one in (SAME, FAST, SLOW, UNSURE, UNKNOWN)] == [False] + [
        True
    ] * 4


@given(first=looks, more=st.lists(looks, min_size=2, max_size=2))
def test_nobody_is_slow_by_one_look(first: Look, more: list[Look]) -> None:
    seen = [first]
    while len(seen) < verdicts.wanted(seen, LIMITS):
        seen.append(more[len(seen) - 1])
    verdict, _ = verdicts.settle(seen, LIMITS)
    kinds = verdicts.kinds_of(seen, LIMITS)
    if verdict in ("SLOW", "FAST"):
        told = (one for one, said in zip(seen, kinds) if said == verdict.lower())
        assert len({one.contract for one in told}) == 1
    if verdict == "SLOW":
        assert kinds.count("slow") >= 2
        assert not {"fast", "same"} & set(kinds)
    if verdict == "FAST":
        assert kinds.count("fast") >= 2
        assert "slow" not in kinds
    if verdict == "BROKEN":
        assert kinds.count("lost") >= 2
    assert ("lost" in kinds) <= (verdict in ("BROKEN", "AMBIGUOUS"))


@given(change=changes, half=halves, noise=noises, base_us=bases, contract=contracts)
def test_a_slow_look_is_beyond_every_threshold(
    change: float, half: float, noise: float, base_us: float, contract: Contract
) -> None:
    seen = look(change, half, noise, base_us, contract)
    if verdicts.kind(seen, LIMITS) == "slow":
        assert seen.speedup_ci is not None
        least = 1 / seen.speedup_ci[1] - 1
        assert least > LIMITS.max_regression_pct / 100
        assert least > noise / 100
        assert least > LEAST_NOISE[contract]
        assert least * base_us > LIMITS.min_regression_us


@given(change=changes, half=halves, noise=noises, more=st.floats(0, 1))
def test_a_slower_head_is_never_judged_better(change: float, half: float, noise: float, more: float) -> None:
    order = ["fast", "same", "unsure", "slow"]
    before = verdicts.kind(look(change, half, noise), LIMITS)
    after = verdicts.kind(look(change + more, half, noise), LIMITS)
    assert order.index(after) >= order.index(before)


@given(change=changes, half=halves, noise=noises, more=st.floats(0, 20))
def test_more_noise_convicts_nobody(change: float, half: float, noise: float, more: float) -> None:
    if verdicts.kind(look(change, half, noise), LIMITS) != "slow":
        assert verdicts.kind(look(change, half, noise + more), LIMITS) != "slow"


@given(seen=st.lists(looks, min_size=1, max_size=3))
def test_the_middle_look_has_numbers_if_any_has(seen: list[Look]) -> None:
    middle = verdicts.middle(seen)
    assert middle in seen
    assert (middle.speedup is None) == all(one.speedup is None for one in seen)


def test_an_ambiguous_row_says_what_each_look_saw() -> None:
    _, reason = verdicts.settle([UNSURE, look(0.1), UNKNOWN], LIMITS)
    assert (
        "unsure, +2.0 .. +4.0 %, noise 1.0 %; slow, +9.8 .. +10.2 %, noise 1.0 %; unsure, no numbers"
        in reason
    )
    assert "the interval is still 9 % wide" in reason


def row(verdict: str, *seen: Look, calls: int = 1, contract: str = "host") -> GateRow:
    return GateRow(
        task="L1/rms_norm", variant="default", case="c", candidate="mine", verdict=verdict, reason="because",
        contract=contract, calls=calls, head="PASSED", base="PASSED", looks=seen,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        (["SAME", "FAST", "NEW"], "passed"),
        (["SAME", "AMBIGUOUS"], "unclear"),
        (["AMBIGUOUS", "SLOW"], "failed"),
        (["SAME", "MISSING"], "failed"),
        (["SAME", "BROKEN"], "failed"),
        ([], "unclear"),
    ],
)
def test_the_outcome_of_all_rows(rows: list[str], outcome: str) -> None:
    assert verdicts.outcome([row(verdict) for verdict in rows], None) == outcome


def test_the_least_speedup_needs_the_whole_interval() -> None:
    rows = [row("FAST", look(-0.2), calls=3), row("SAME", look(0.0))]
    found = verdicts.overall(rows)
    assert found is not None
    assert found[0] == pytest.approx(1.25**0.75)  # weighted by calls
    assert found[1][0] < found[0] < found[1][1]
    assert [verdicts.reached(found, x) for x in (1.0, found[0], 1.5, None)] == [
        "met",
        "unclear",
        "missed",
        None,
    ]
    assert verdicts.reached(None, 1.0) == "unclear"
    same = [row("SAME", look(0.0))]
    assert verdicts.outcome(same, "missed") == "failed"
    assert verdicts.outcome(same, "unclear") == "unclear"
    assert verdicts.outcome(same, "met", complete=False) == "unclear"
    assert verdicts.outcome([row("SLOW", look(0.0))], None, complete=False) == "failed"


def test_the_mean_of_all_rows_never_mixes_contracts() -> None:
    graph = row("SAME", look(0.0), contract="graph")
    eager = row("FAST", look(-0.5), contract="eager")
    assert verdicts.overall([eager, graph, eager]) == verdicts.overall([graph])
    found = verdicts.overall([eager, eager])
    assert found is not None
    assert found[0] == pytest.approx(2.0)
    checked = row("SAME", contract="graph")  # nothing was timed under the contract that was asked for
    assert verdicts.overall([checked, eager]) is None


def test_noise_that_hides_a_regression_is_said() -> None:
    (note,) = verdicts.unseen([row("SAME", look(0.0, noise=7.0)), row("SAME", look(0.0))], LIMITS)
    assert note.startswith("1 of 2 timed rows")
    assert "7.0 %" in note
    assert verdicts.unseen([row("SAME", look(0.0)), row("SLOW", look(0.5, noise=7.0))], LIMITS) == ()
    (note,) = verdicts.unseen([row("SAME", EAGER_SAME, contract="eager")], LIMITS)
    assert "(up to 8.0 %)" in note


@pytest.mark.parametrize("numbers", [{"speedup": 1.0}, {}, {"problem": "x", "speedup": 1.0}])
def test_a_look_is_whole(numbers: dict) -> None:
    with pytest.raises(ValueError, match="all its numbers"):
        Look(**numbers)
