"""Implementations by name, without a cost that the baseline has not."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from fastkernels.runner.inside import forcing
from fastkernels.runner.inside.what_ran import recorded


def ran() -> dict[str, str]:
    with recorded() as seen:
        kernels.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6)
    return seen


def test_a_preference_holds_in_the_body_only() -> None:
    before = ran()
    assert before["rms_norm"] != "reference"
    with forcing.preferring({"rms_norm": "reference"}):
        assert ran() == {"rms_norm": "reference"}
        assert registered["rms_norm"].choose((torch.ones(2, 4), torch.ones(4), 1e-6)) == "reference"
    assert ran() == before


def test_an_implementation_that_cannot_serve_the_call_says_why() -> None:
    with forcing.preferring({"rms_norm": "triton"}):
        seen = ran()
    assert seen == {"rms_norm": "reference"}
    with pytest.raises(KernelError, match="Kernel rms_norm, implementation triton: needs cuda, not cpu"):
        forcing.require({"rms_norm": "triton"}, seen)
    forcing.require({"rms_norm": "reference", "glu": "triton"}, seen)
    # Whoever asks a kernel for an implementation by name gets it, whatever is preferred.
    forcing.require({"rms_norm": "reference"}, {"rms_norm": "triton"})
