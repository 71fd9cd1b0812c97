"""Weights are drawn again where a tiny model repeats itself; who draws is the judge."""

import pytest

from fastkernels import registry
from fastkernels.runner import wandering as module
from fastkernels.runner.wandering import MOST, wandering

WORKLOADS = [w for w in registry.workloads(size="tiny") if w.name in ("single-request", "prefill-heavy")]
SHARES = {1: 0.4, 2: MOST, 3: 0.0, 4: 0.06}


@pytest.mark.parametrize(("seeds", "found"), [([1, 2, 3], 2), ([3, 1], 3), ([1, 4], 4)])
def test_the_first_that_repeats_little_or_the_last(monkeypatch, seeds, found):
    monkeypatch.setattr(module, "_repeated", lambda model, config, seed, workloads: SHARES[seed])
    assert wandering("llama", "tiny", seeds, WORKLOADS) == found


def test_what_is_found_is_a_share_of_real_texts():
    (alone,) = [w for w in WORKLOADS if w.name == "single-request"]
    shares = [module._repeated("llama", "tiny", seed, [alone]) for seed in range(8)]
    assert all(0 <= share < 1 for share in shares)
    assert min(shares) < MOST < max(shares), "tiny Llama does both"
    assert shares[0] == module._repeated("llama", "tiny", 0, [alone])
    assert all(module._repeated("llama", "tiny", seed, WORKLOADS) >= shares[seed] for seed in range(3))
