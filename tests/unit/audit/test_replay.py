"""A run with a mistake in a later block is the same whether earlier blocks ran or returned what they had."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastkernels import registry
from fastkernels.audit.effects import NOTHING, effect
from fastkernels.audit.mutants import mutants
from fastkernels.audit.replay import Replay, blocks
from fastkernels.audit.subject import Change
from tests.unit.audit.conftest import subject_of


class _Scale(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by, self.calls = by, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.by


class _Stack(nn.Module):
    """The middle block is called twice, and what the first returned is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(_Scale, (2.0, 3.0, 5.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.layers
        return third(second(second(first(x).add_(1))))


def test_blocks_before_a_part_are_left_out_unless_they_are_called_twice() -> None:
    stack, x = _Stack(), torch.tensor([1.0])
    replay = Replay(stack, blocks(stack))
    with replay.recording():
        right = stack(x)
    for part, calls in (
        ("layers.2", [1, 4, 2]),
        ("layers.0", [2, 6, 3]),
        ("norm", [3, 8, 4]),
        ("", [4, 10, 5]),
    ):
        with replay.before(part):
            assert torch.equal(stack(x), right)
        assert [layer.calls for layer in stack.layers] == calls


def test_another_recording_takes_the_place_of_the_last() -> None:
    stack = _Stack()
    replay = Replay(stack, blocks(stack))
    for x in (torch.tensor([1.0]), torch.tensor([7.0])):
        with replay.recording():
            right = stack(x)
    with replay.before("layers.2"):
        assert torch.equal(stack(torch.tensor([7.0])), right)


@pytest.mark.parametrize(
    "task",
    [
        "L3/text_encoder",
        pytest.param("L3/vae_decoder", marks=pytest.mark.whole),
        "L4/siglip2",
        pytest.param("L4/flux", marks=pytest.mark.whole),
    ],
)
def test_every_mistake_costs_the_same(task: str) -> None:
    """Of tasks whose modules have blocks and change no argument, the first tiny case."""
    subject = subject_of(registry.cases(registry.task(task), size="tiny")[0])
    draw, replay = subject.draw("normal", 0), subject.replay()
    with replay.recording():
        exact = subject.oracle(draw.inputs)
    wide = draw.wide(exact, draw.previous)
    left_out = 0
    for change in mutants(subject, draw):
        if isinstance(change, Change) and change.within and change.runs:
            plain, replayed = subject.exact(wide, change), subject.exact(wide, change, replay)
            for name, right in plain.items():
                off = effect(replayed[name], right, subject.dtype, None).moved
                assert off <= NOTHING, (change.name, name, off)
            left_out += len(replay._left_out(change.within))
    assert left_out
