"""Times of fk tune: of the call that is meant, from a cold cache, under each contract."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels, registry
from fastkernels.kernels.choice import Implementation
from fastkernels.loader.overlay import Overlay
from fastkernels.measure import roofline
from fastkernels.measure.ceilings import ceilings
from fastkernels.runner.tuning.calls import MOST_LINKS
from fastkernels.runner.tuning.look import look
from fastkernels.runner.tuning.stopwatch import Stopwatch, Timed

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


COMPILES_FOR_MINUTES = frozenset((kernel, "flashinfer") for kernel in kernels.registered)


@pytest.fixture(scope="module")
def stopwatch() -> Stopwatch:
    return Stopwatch("cuda")


def timed(stopwatch: Stopwatch, task: str, case: str) -> Timed:
    """Of one that contains the text, or of the first."""
    found = next(c for c in registry.cases(task, "full", glob=case) if c.timed)
    looked = look(found, "cuda", COMPILES_FOR_MINUTES, True, lambda *one: None)
    assert 1 <= looked.plan.links <= MOST_LINKS
    seen = stopwatch.times(found, looked, 0.3, lambda *one: None)
    floor_us = 1e6 * roofline.floor_s(roofline.work(found, Overlay.over_baseline()), ceilings("cuda"))
    for row in seen.rows:
        assert row.us > floor_us / roofline.MARGIN_MEASURED_HERE, row
        assert row.difference < 0.02, row
    return seen


@pytest.mark.parametrize(
    ("task", "case"),
    [
        ("L1/rms_norm", "llama-8b-T8192*"),
        ("L1/linear", "llama-8b-T8192*"),
        ("L1/embedding", "llama-8b*"),
        ("L1/decode_attention", "llama-8b-decode-32*"),
        ("L1/prefill_attention", "llama-8b-prefill-1x512*"),
        ("L1/kv_cache", "*"),
        ("L2/gated_mlp", "llama-8b*"),
    ],
)
def test_each_implementation_has_a_time(stopwatch: Stopwatch, task: str, case: str) -> None:
    seen = timed(stopwatch, task, case)
    print(task, *(f"{r.contract} {r.implementation} {r.us:.2f}" for r in seen.rows), seen.untimed, sep="\n")
    graph = [row for row in seen.rows if row.contract == "graph"]
    assert graph
    assert [row.implementation for row in graph if row.chosen]


def test_what_cannot_be_captured_is_timed_eagerly_beside_the_others(stopwatch, monkeypatch) -> None:
    """And the two contracts agree on a call of 8,192 rows."""
    kernel = kernels.registered["rms_norm"]

    def waiting(*args):
        out = kernel(*args, impl="torch")
        out[0, 0].item()
        return out

    own = {"waiting": Implementation("waiting", waiting)}
    monkeypatch.setattr(kernel, "_by_name", {**kernel._by_name, **own})
    seen = timed(stopwatch, "L1/rms_norm", "llama-8b-T8192*")
    us = {(row.contract, row.implementation): row.us for row in seen.rows}
    assert ("graph", "waiting") not in us
    assert us["eager", "waiting"] > us["eager", "torch"]
    assert us["eager", "torch"] == pytest.approx(us["graph", "torch"], rel=0.15)
