"""How long a chain is."""

import pytest

from fastkernels.measure.chain import MOST_LINKS, chain_length

H200 = 141 << 30


@pytest.mark.parametrize(
    ("floor_us", "link_bytes", "links"),
    [
        (0.05, 140_000, MOST_LINKS),  # rms_norm of 8 rows
        (0.0, 0, MOST_LINKS),
        (11.0, 50 << 20, 37),  # a matrix product of one row: 400 us / 11 us
        (55.0, 235 << 20, 8),
        (3_500.0, 16 << 30, 1),
        (50.0, 3 << 30, 1),  # memory allows less than one, and there is always one
        (50.0, 1 << 30, 2),
    ],
)
def test_short_calls_make_long_chains_that_fit_in_memory(floor_us, link_bytes, links) -> None:
    assert chain_length(floor_us / 1e6, link_bytes, H200) == links
