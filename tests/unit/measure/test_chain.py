"""How long a chain is, and what its links share."""

import pytest

from fastkernels.measure.chain import MOST_LINKS, ChainPlan, chain_plan

H200 = 141 << 30
MB = 1 << 20


@pytest.mark.parametrize(
    ("floor_us", "parameter_bytes", "other_bytes", "links"),
    [
        (0.05, 8192, 130_000, MOST_LINKS),  # rms_norm of 8 rows
        (0.0, 0, 0, MOST_LINKS),
        (11.0, 50 * MB, 8192, 37),  # a matrix product of one row: 400 us / 11 us
        (55.0, 235 * MB, 8192, 8),
        (3_500.0, 16 << 30, 8192, 1),
        (250.0, 1 << 30, 0, 4),  # a head of 128,256 columns
        (800.0, 1 << 30, 0, 2),
        (2_500.0, 1 << 30, 0, 1),
        (50.0, 9 << 30, 0, 1),  # memory allows less than one, and there is always one
        (50.0, 3 << 30, 0, 2),
    ],
)
def test_short_calls_make_long_chains_that_fit_in_memory(floor_us, parameter_bytes, other_bytes, links):
    read_bytes = parameter_bytes + other_bytes
    found = chain_plan(floor_us / 1e6, read_bytes, parameter_bytes, other_bytes, H200)
    assert found == ChainPlan(links, shares_parameters=False)


def test_a_chain_has_as_many_links_as_are_asked_for_at_least():
    """Inputs have two layouts, and a chain has both."""
    assert chain_plan(3.5e-3, 16 << 30, 16 << 30, 8192, H200, least=2) == ChainPlan(2)
    assert chain_plan(0.0, 0, 0, 0, H200, least=2) == ChainPlan(MOST_LINKS)


def test_lookups_in_a_large_table_share_it():
    """An embedding of 512 of 128,256 rows: two tables would fit, and two calls are no chain."""
    found = chain_plan(2e-6, 512 * 8192, 128_256 * 8192, 4096, H200)
    assert found == ChainPlan(MOST_LINKS, shares_parameters=True)
    assert found.links_of("param.weight") == 1
    assert found.links_of("arg.ids") == MOST_LINKS
    assert ChainPlan(3).links_of("param.weight") == 3
