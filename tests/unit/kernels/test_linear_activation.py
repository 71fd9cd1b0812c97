"""linear_activation: every implementation on this machine against the formula in float64."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import linear_tf32x3
from fastkernels.kernels.activation import Name
from tests.encoder_cases import LINEAR_ACTIVATIONS, linear_activation_case
from tests.unit.kernels.implementations import GEMV, TF32X3, TRITON, TRITON_DTYPE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LINEAR_ACTIVATIONS)
@pytest.mark.parametrize("impl", ["reference", "parts"])
def test_against_the_formula(impl, name, bias, dtype):
    args, wanted, limit = linear_activation_case((2, 5), 24, 40, name, dtype, bias)
    found = kernels.linear_activation(*args, name, impl=impl)
    assert found.dtype == dtype
    assert found.shape == (2, 5, 40)
    assert (found.double() - wanted).abs().max() < limit


def check_few_rows(impl: str, shape: tuple[tuple[int, ...], int, int], name: Name, bias: bool) -> None:
    args, wanted, limit = linear_activation_case(*shape, name, TRITON_DTYPE, bias)
    found = kernels.linear_activation(*args, name, impl=impl)
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() < limit


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LINEAR_ACTIVATIONS)
@pytest.mark.parametrize("impl", [GEMV])
def test_one_row(impl, name, bias):
    check_few_rows(impl, ((1,), 1500, 9), name, bias)


# With splits and without, tails of inputs and of outputs.
@pytest.mark.parametrize("shape", [((2, 5), 1030, 70), ((32,), 130, 65)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LINEAR_ACTIVATIONS)
@pytest.mark.parametrize("impl", [TRITON])
def test_few_rows(impl, name, bias, shape):
    check_few_rows(impl, shape, name, bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["relu", "gelu"])
@pytest.mark.parametrize("impl", [TF32X3])
def test_float32_on_tensor_cores(impl, name, bias, monkeypatch):
    monkeypatch.setattr(linear_tf32x3, "SMALLEST", 0)
    args, wanted, limit = linear_activation_case((3, 30), 130, 65, name, torch.float32, bias)
    found = kernels.linear_activation(*args, name, impl=impl)
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() < limit


def test_bad_calls():
    args, *_ = linear_activation_case((3,), 8, 16, "gelu", torch.float32, True)
    with pytest.raises(ValueError, match="gelu_tanh"):
        kernels.linear_activation(*args, "softsign")  # pyright: ignore
    with pytest.raises(KernelError, match="cuda"):
        kernels.linear_activation(*args, "gelu_tanh", impl="cublaslt")
