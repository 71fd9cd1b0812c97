"""Every tiny case of the registry runs on the CPU, and its baseline agrees with the float64 reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastkernels import kernels, registry
from fastkernels.judge.conditioning import ROUNDINGS, step
from fastkernels.kernels import ternary
from fastkernels.loader.inputs import cast, draw, trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.records import Case

TINY = [case for task in registry.tasks() for case in registry.cases(task.id, size="tiny")]
# float32 against float64 of the same inputs; a model of three layers has the largest error.
TOLERANCE = 2e-5


def outputs(case: Case, tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    module = build_module(Overlay.over_baseline(), case, "cpu", dtype)
    # Caches are written in place: each side gets its own.
    own = {name: value.clone() for name, value in cast(tensors, dtype).items()}
    return bind(module, case, own).invoke()


def decided_otherwise(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float64 reference where what a few roundings could decide is the other way."""
    with kernels.use("reference"), ternary.other_way(ROUNDINGS * step(case)):
        return outputs(case, tensors, torch.float64)


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("case", TINY, ids=lambda case: f"{case.task}:{case.variant}-{case.id}")
def test_baseline_agrees_with_the_float64_reference(case: Case):
    specs = trial_specs(case, build_module(Overlay.over_baseline(), case, "meta"))
    tensors = draw(specs, case, seed=0)
    actual = outputs(case, tensors, torch.float32)
    with kernels.use("reference"):
        expected = outputs(case, tensors, torch.float64)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].shape == value.shape
        if value.is_floating_point():
            error, allowed = distance(actual[name], value), TOLERANCE
            if error > allowed:  # unless float32 rounds to another whole number, as for the judge
                allowed = 2 * distance(decided_otherwise(case, tensors)[name], value)
            assert error <= allowed, f"{name}: relative error {error:.1e}"
        else:
            assert torch.equal(actual[name], value), name
