"""The example candidates against a float64 formula: two are right on hard inputs, one is clearly wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from fastkernels.loader.check import check
from fastkernels.loader.distributions import DISTRIBUTIONS, fill
from fastkernels.loader.overlay import Overlay

EXAMPLES = Path(__file__).parents[3] / "examples" / "candidates"
EPS = 1e-5
# Rounding of the result, and of the product with the weight, in each dtype; float32 sums add a few more.
ROUNDING = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
right = pytest.mark.parametrize("name", [pytest.param("faster", marks=needs_compiler), "slower"])
dtypes = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def module(name: str, width: int, dtype: torch.dtype = torch.float32):
    cls = Overlay.over_baseline([EXAMPLES / name]).load("L1.rms_norm").RMSNorm
    built = cls(width, EPS).to(dtype)
    with torch.no_grad():
        built.weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(width))
    return built


def truth(x, weight):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def inputs(distribution, shape, dtype, seed=0):
    return fill(torch.empty(shape, dtype=dtype), distribution, torch.Generator().manual_seed(seed))


@right
@dtypes
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", [(8, 64), (3, 5, 1), (5, 191), (2, 4099)], ids=str)
def test_plain(name, dtype, distribution, shape):
    norm, x = module(name, shape[-1], dtype), inputs(distribution, shape, dtype)
    before = x.clone()
    y = norm(x)
    assert (y.shape, y.dtype, y.is_contiguous()) == (x.shape, dtype, True)
    torch.testing.assert_close(y.double(), truth(x, norm.weight), rtol=2 * ROUNDING[dtype], atol=1e-30)
    assert torch.equal(x, before)


@right
@dtypes
@pytest.mark.parametrize("distribution", ["normal", "mixed"])
def test_residual(name, dtype, distribution):
    norm = module(name, 333, dtype)
    x, residual = (inputs(distribution, (7, 333), dtype, seed) for seed in (1, 2))
    y, total = norm(x, residual)
    assert torch.equal(total, x + residual), "the sum is rounded to the dtype"
    torch.testing.assert_close(y.double(), truth(total, norm.weight), rtol=2 * ROUNDING[dtype], atol=1e-30)


@right
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nonfinite_values_behave_as_the_baselines(name, dtype):
    norm, plain = (
        module(name, 130, dtype),
        Overlay.over_baseline().load("L1.rms_norm").RMSNorm(130, EPS).to(dtype),
    )
    plain.load_state_dict(norm.state_dict())
    x = inputs("normal", (4, 130), dtype)
    x[0, 5], x[1, 129], x[2, 0] = torch.nan, torch.inf, -torch.inf
    expected = plain(x)
    assert torch.equal(norm(x).isnan(), expected.isnan())
    assert expected[0].isnan().all()
    assert norm(x)[3].isfinite().all()


@right
def test_strided_rows(name):
    norm, x = module(name, 64), inputs("normal", (6, 200), torch.float32)[:, 3:67]
    torch.testing.assert_close(norm(x).double(), truth(x, norm.weight), rtol=1e-6, atol=1e-30)


@needs_compiler
def test_faster_rounds_bfloat16_as_pytorch_does():
    norm = module("faster", 256, torch.bfloat16)
    x, residual = (inputs("heavy_tail", (512, 256), torch.bfloat16, seed) for seed in (3, 4))
    assert torch.equal(norm(x, residual)[1], x + residual)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_wrong_is_clearly_wrong(distribution):
    norm, x = module("wrong", 64), inputs(distribution, (8, 64), torch.float32)
    expected = truth(x, norm.weight)
    error = (norm(x).double() - expected).norm() / expected.norm()
    assert error > 1e-3, "a thousand times what float32 rounding explains"


@pytest.mark.parametrize("name", ["faster", "slower", "wrong"])
def test_check_has_nothing_to_say(name):
    assert check(EXAMPLES / name) == []
