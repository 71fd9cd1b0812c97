"""softmax: every implementation on this machine against the formula in float64."""

import importlib

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import policy
from tests.pointwise_cases import check, softmax_cases
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

# The last width is streamed by the Triton kernel, in three blocks with a remainder.
CASES = softmax_cases([(1, 64), (3, 7), (40, 129), (2, 3000), (0, 8), (5, 1), (2, 17001)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(case, impl, dtype):
    if impl == "torch" and dtype == torch.float32 and case.make(dtype)[0].shape[-1] > 400:
        with pytest.raises(KernelError, match="too roughly for more than 400 float32 values"):
            check(case, dtype, impl)
        return
    check(case, dtype, impl)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    out = kernels.softmax(*args, impl="reference")
    torch.testing.assert_close(out, case.answer(*args)[0], rtol=1e-11, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("width", [60, 17001])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_long_masked_beginning(impl, width):
    """An online softmax meets whole blocks of -inf before the first number."""
    x = torch.full((2, width), -torch.inf, dtype=torch.float64 if impl == "torch" else torch.float32)
    x[:, -2:] = torch.tensor([1.0, 1.0])
    y = kernels.softmax(x, impl=impl)
    assert torch.equal(y[:, -2:], torch.full((2, 2), 0.5).to(y))
    assert not y[:, :-2].any()


@pytest.mark.skipif(not policy.interpreting(), reason="Triton runs on this machine only when interpreted")
@pytest.mark.parametrize("case", [case for case in CASES if case.name in ("wide", "T2-D17001")], ids=str)
def test_triton_in_parts(case, monkeypatch):
    """The interpreter has one processor, which a row keeps busy; a GPU has more than these rows."""
    module = importlib.import_module("fastkernels.kernels.softmax_triton")
    monkeypatch.setattr(module, "multiprocessors", lambda device: 132)
    check(case, torch.float32, "triton")
