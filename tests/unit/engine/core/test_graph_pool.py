"""What is kept of captures: results by key, and the reason of each that failed."""

from __future__ import annotations

import pytest

from fastkernels.engine.core.graph_pool import Captures


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("operation not permitted\nwhen stream is capturing"), "operation not permitted"),
        (NotImplementedError(), "NotImplementedError"),
    ],
    ids=["told", "silent"],
)
def test_failed_capture_is_tried_once_and_says_why(error: Exception, reason: str) -> None:
    captures: Captures[str, int] = Captures()
    tries = []

    def capture() -> int:
        tries.append(1)
        raise error

    for _ in range(2):
        assert captures.get("a", capture) == (None, f"capture failed: {reason}")
    assert len(tries) == 1
    assert "a" in captures
    assert len(captures) == 0


def test_mistake_of_ours_is_no_failed_capture() -> None:
    captures: Captures[str, int] = Captures()
    with pytest.raises(KeyError):
        captures.get("a", lambda: {}["b"])
    assert captures.get("a", lambda: 3) == (3, None)
