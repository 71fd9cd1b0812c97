"""Threads that wait for busy cores."""

import pytest
import torch

from fastkernels.measure import threads


@pytest.mark.parametrize(
    ("count", "together", "told"), [(1, 1.0, None), (4, 1.9e-5, None), (4, 3e-5, "3 times")]
)
def test_only_several_threads_that_are_far_slower_than_one_are_held_up(
    monkeypatch, count: int, together: float, told: str | None
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    monkeypatch.setattr(threads, "seconds", lambda n: 1e-5 if n == 1 else together)
    found = threads.held_up()
    assert found is None if told is None else found is not None and told in found


def test_a_measurement_puts_the_threads_back() -> None:
    before = torch.get_num_threads()
    assert threads.seconds(1) > 0
    assert torch.get_num_threads() == before
