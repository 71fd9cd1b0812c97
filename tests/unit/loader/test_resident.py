"""A module whose parameters stay in it."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from fastkernels.loader.resident import Resident


class Doubled(nn.Module):
    """Keeps twice its weight, as a kernel's packed copy."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float64), requires_grad=False)
        self.prepared = 0

    def prepare(self) -> None:
        self.prepared += 1


def test_parameters_in_place_stay_and_others_are_copied_in_the_modules_dtype() -> None:
    module = Doubled()
    resident = Resident(module)
    ones, twos = torch.ones(2, dtype=torch.bfloat16), torch.full((2,), 2.0)
    for given, value, prepared in ((ones, 1, 1), (ones, 1, 1), (twos, 2, 2), (ones, 1, 3)):
        resident.load({"param.weight": given}, kept=True)
        assert module.weight.tolist() == [value, value]
        assert module.prepared == prepared


def test_what_was_written_into_the_same_tensor_since_is_loaded_unless_it_is_kept() -> None:
    module = Doubled()
    resident, weight = Resident(module), torch.ones(2)
    resident.load({"param.weight": weight})
    weight.fill_(3)
    resident.load({"param.weight": weight}, kept=True)
    assert module.weight.tolist() == [1, 1]
    resident.load({"param.weight": weight})
    assert module.weight.tolist() == [3, 3]


def test_a_tensor_that_is_gone_is_not_taken_for_another() -> None:
    module = Doubled()
    resident = Resident(module)
    resident.load({"param.weight": torch.ones(2)}, kept=True)
    resident.load({"param.weight": torch.full((2,), 5.0)}, kept=True)
    assert module.weight.tolist() == [5, 5]


def test_parameters_that_are_made_when_asked_for_are_there_one_at_a_time() -> None:
    """Of a mixture of experts two in float64 do not fit beside the module."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    made: list[weakref.ref[torch.Tensor]] = []

    class Making(dict[str, torch.Tensor]):
        def __missing__(self, name: str) -> torch.Tensor:
            assert not any(reference() is not None for reference in made), name
            tensor = torch.ones(module.state_dict()[name.removeprefix("param.")].shape)
            made.append(weakref.ref(tensor))
            return tensor

    Resident(module).load(Making())
    assert len(made) == 4
    assert all(bool((value == 1).all()) for value in module.state_dict().values())
