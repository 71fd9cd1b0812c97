"""One thread for torch, here and in the processes that tests start: tiny operators gain nothing from two, and
two threads that wait for each other beside other work take ten times as long."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture
def nobody_grows(monkeypatch):
    """Engines whose caches have few blocks give rows up, as they do in earnest where requests grow longer
    than those before them."""
    from fastkernels.engine.forecast import Lengths
    from tests.forecasts import NobodyGrows

    monkeypatch.setattr(Lengths, "expected", NobodyGrows.expected)
