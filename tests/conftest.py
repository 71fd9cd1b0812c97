"""One thread for torch, here and in the processes that tests start: tiny operators gain nothing from two, and
two threads that wait for each other beside other work take ten times as long."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

pytest_plugins = ("tests.budget",)


@pytest.fixture
def heeds_signals():
    """A run of the tests in the background (`nohup`, a shell's `&`) ignores signals, and what it starts does
    so too."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def nobody_grows(monkeypatch):
    """Engines whose caches have few blocks give rows up, as they do in earnest where requests grow longer
    than those before them."""
    from fastkernels.engine.core.ledger import Lengths
    from tests.forecasts import NobodyGrows

    monkeypatch.setattr(Lengths, "expected", NobodyGrows.expected)
