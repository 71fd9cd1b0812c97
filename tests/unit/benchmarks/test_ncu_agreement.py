"""benchmarks/ncu_agreement.py: what it reads of the profiler's table, and what agrees."""

from __future__ import annotations

import pytest

HEADER = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'


@pytest.fixture
def ncu_agreement(program):
    return program("ncu_agreement")


def _kernel(name: str, value: str, unit: str = "ns") -> str:
    return f'"0","{name}","gpu__time_duration.sum","{unit}","{value}"'


def test_a_series_ends_where_the_separator_ran(ncu_agreement):
    lines = [HEADER, _kernel("rms_norm", "2,752"), _kernel("rms_norm", "2.5", "us")]
    lines += [_kernel("spin_kernel(long)", "900"), _kernel("glu", "0.012", "ms"), _kernel("spin_kernel", "9")]
    found = [series for series in ncu_agreement.split(lines) if series]
    assert [pytest.approx(series) for series in found] == [[2.752, 2.5], [12.0]]


def test_a_call_is_the_sum_of_its_kernels_and_the_median_call_counts(ncu_agreement):
    assert ncu_agreement.of_one_call([1.0, 10.0, 2.0, 20.0, 3.0, 90.0], 3) == 22.0
    with pytest.raises(SystemExit, match="5 kernels in 2 calls"):
        ncu_agreement.of_one_call([1.0] * 5, 2)


@pytest.mark.parametrize(
    ("graph_us", "ncu_us", "agrees"),
    [(4.0, 4.4, True), (4.0, 4.6, False), (100.0, 104.0, True), (100.0, 105.5, False), (100.0, 96.0, True)],
)
def test_half_a_microsecond_counts_below_five_of_them(ncu_agreement, graph_us, ncu_us, agrees):
    assert ncu_agreement.agree(graph_us, ncu_us) is agrees
