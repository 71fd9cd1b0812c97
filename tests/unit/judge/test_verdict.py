"""When a speed-up counts as a win or a loss."""

from pathlib import Path

import pytest

from fastkernels.judge.verdict import Speedup, too_noisy
from fastkernels.records import Contract, KernelRow
from fastkernels.report.json import load_kernels

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def speedup(
    low: float,
    high: float,
    noise_pct: float,
    contract: Contract = "graph",
    links: int = 64,
    waits: bool = False,
) -> Speedup:
    return Speedup(
        contract=contract,
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
        links=links,
        waits=waits,
    )


@pytest.mark.parametrize(
    ("low", "high", "noise_pct", "significant"),
    [
        (1.041, 1.05, 2.0, True),
        (1.019, 1.03, 2.0, False),  # as far as the two baseline processes differ
        (1.028, 1.053, 2.0, False),  # seen of identical code: the third process is farther off
        (0.93, 0.95, 2.0, True),
        (0.95, 0.97, 2.0, False),
        (0.9956, 0.9971, 0.13, False),  # seen of identical code: a pair that happened to agree
        (1.006, 1.007, 0.13, False),
        (1.011, 1.012, 0.13, True),
    ],
)
def test_a_win_or_loss_exceeds_the_noise(low, high, noise_pct, significant) -> None:
    assert speedup(low, high, noise_pct).significant is significant


@pytest.mark.parametrize(
    ("low", "high", "noise_pct"),
    [(0.9858, 0.9893, 0.34), (1.0135, 1.0244, 1.72), (1.0166, 1.0229, 1.85)],  # seen of identical code
)
def test_one_link_lies_in_one_place(low: float, high: float, noise_pct: float) -> None:
    assert not speedup(low, high, noise_pct, links=1).significant
    assert speedup(low - 0.03, low - 0.03, noise_pct / 10, links=1).significant is (low < 1)
    assert speedup(high + 0.03, high + 0.03, noise_pct / 10, links=1).significant is (high > 1)


@pytest.mark.parametrize("ratio", [0.915, 0.94, 1.06, 1.08])
def test_a_single_eager_call_differs_by_more_than_a_chain(ratio: float) -> None:
    """Eager self-tests read 0.94 to 1.08."""
    low, high = 0.999 * ratio, 1.001 * ratio
    assert speedup(low, high, 0.5, "graph").significant
    assert speedup(low, high, 0.5, "eager").significant is (ratio < 0.93)


def test_nothing_is_claimed_of_a_call_that_waits_for_the_device() -> None:
    assert speedup(0.03, 0.04, 1.0, "eager", waits=True).significant is None
    assert speedup(0.03, 0.04, 1.0, "eager").significant is True


@pytest.mark.parametrize(
    ("contract", "noise_pct", "found"),
    [("eager", 8.84, True), ("eager", 12.6, True), ("eager", 7.9, False), ("graph", 12.6, False)],
)
def test_noise_beyond_the_bound_of_eager_leaves_no_ratio(contract, noise_pct: float, found: bool) -> None:
    assert too_noisy(contract, noise_pct) is found


@pytest.mark.parametrize("name", ["h200/kernels_llama", "h200/self_test_llama", "h100/kernels_llama"])
def test_no_committed_row_of_identical_code_would_be_called_faster_or_slower(name: str) -> None:
    rows = [
        row for row in load_kernels(BENCHMARKS / f"{name}.json.gz").rows if row.speedup and _identical(row)
    ]
    assert rows
    for row in rows:
        assert row.speedup_ci
        assert row.noise_pct is not None
        claimed = speedup(*row.speedup_ci, row.noise_pct, row.contract, row.links).significant
        assert too_noisy(row.contract, row.noise_pct) or not claimed, (row.task, row.case, row.speedup)


def _identical(row: KernelRow) -> bool:
    ran = {kernel.partition("=")[2] for kernel in (row.baseline_impl or "").split()}
    return row.candidate == "self-test" or ran == {row.candidate.removeprefix("impl:")}
