"""The Triton candidate against the baseline's reference and float64: in the interpreter, or on a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fastkernels import kernels
from fastkernels.loader.overlay import Overlay

EXAMPLE = Path(__file__).parents[3] / "examples" / "cuda" / "triton"
EPS = 1e-5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = {torch.float32: 2**-20, torch.bfloat16: 2**-7, torch.float16: 2**-10}

runs = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
    reason="runs on a GPU, or with TRITON_INTERPRET=1",
)
# The interpreter cuts bfloat16 off where a GPU rounds.
dtypes = pytest.mark.parametrize(
    "dtype", [d for d in ROUNDING if DEVICE == "cuda" or d != torch.bfloat16], ids=str
)


def loaded(task: str):
    return Overlay.over_baseline([EXAMPLE]).load(task)


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (2 * torch.randn(shape, generator=generator)).to(dtype).to(DEVICE)


def close(y: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    assert (y.shape, y.dtype, y.is_contiguous()) == (truth.shape, dtype, True)
    torch.testing.assert_close(y.double(), truth, rtol=ROUNDING[dtype], atol=1e-6)


@runs
@dtypes
@pytest.mark.parametrize("shape", [(8, 64), (3, 5, 1), (2, 4099), (0, 64)], ids=str)
@pytest.mark.parametrize("added", [False, True], ids=["plain", "residual"])
def test_rms_norm(shape, dtype, added):
    x, weight = drawn(*shape, dtype=dtype), drawn(shape[-1], dtype=dtype).abs() / 2 + 0.5
    residual = drawn(*shape[::-1], dtype=dtype).permute(*range(len(shape) - 1, -1, -1)) if added else None
    y = loaded("L1.rms_norm").normalise(x, residual, weight, EPS)
    s = x
    if residual is not None:
        y, s = y
        torch.testing.assert_close(s, x + residual, rtol=0, atol=0)
    close(y, kernels.rms_norm(s.double(), weight.double(), EPS, impl="reference"), dtype)


@runs
@dtypes
@pytest.mark.parametrize("shape", [(3, 64), (2, 2, 2), (2, 2 * 1025), (0, 8)], ids=str)
def test_glu(shape, dtype):
    x = drawn(*shape, dtype=dtype)
    close(loaded("L1.glu").gated(x), kernels.glu(x.double(), "silu", impl="reference"), dtype)


@runs
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # NumPy's, in the interpreter
def test_large_gates_stay_finite():
    y = loaded("L1.glu").gated(torch.tensor([[-1e4, -100.0, 100.0, 2.0, 2.0, 2.0]], device=DEVICE))
    torch.testing.assert_close(y.cpu(), torch.tensor([[0.0, 0.0, 200.0]]))


def test_other_devices_have_the_baseline():
    norm = loaded("L1.rms_norm").RMSNorm(64, EPS)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    x = torch.randn(3, 64)
    assert torch.equal(norm(x), kernels.rms_norm(x, norm.weight, EPS))
    glu = loaded("L1.glu")
    assert torch.equal(glu.SiluAndMul()(x), kernels.glu(x, "silu"))
    assert torch.equal(glu.GeluAndMul()(x), kernels.glu(x, "gelu"))
