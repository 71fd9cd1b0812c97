"""Sums in few bits in one launch are those that precision.py adds part by part. In float16: the interpreter's
bfloat16 rounds otherwise, and tests/gpu/test_judge.py looks at that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastkernels.audit import few_bits
from fastkernels.audit.precision import PART, narrow_sums
from fastkernels.kernels.policy import interpreting

KEPT = torch.float16
interpreted = pytest.mark.skipif(not interpreting(), reason="runs in the interpreter")


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def agree(found: torch.Tensor, wanted: torch.Tensor, terms: int) -> None:
    """A sum of one part is in float32; of others a partial one may be rounded the other way, in few."""
    one_part = terms <= PART
    torch.testing.assert_close(
        found, wanted, rtol=1e-4 if one_part else 4e-3, atol=1e-6 if one_part else 1e-2
    )
    assert one_part or not found.numel() or (found == wanted).double().mean() > 0.95


@interpreted
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(17, 40, 33), (70, 100, 200), (3, 16, 5), (1, 7, 1)])
def test_products(dtype: torch.dtype, batch: tuple, rows: int, inner: int, columns: int) -> None:
    a, b = drawn(*batch, rows, inner, dtype=dtype), drawn(*batch, columns, inner, dtype=dtype).mT
    with narrow_sums(KEPT):
        wanted = a @ b
    agree(few_bits.product(a, b, PART, KEPT).to(dtype), wanted, inner)


@interpreted
@pytest.mark.parametrize("shape", [(5, 400, 3), (200, 47, 2), (1, 3000, 1), (7, 16, 9), (0, 40, 3)])
@pytest.mark.parametrize("dim", [1, -2])
def test_totals(shape: tuple[int, ...], dim: int) -> None:
    x = drawn(*shape) + 1
    with narrow_sums(KEPT):
        wanted = x.sum(dim)
    agree(few_bits.total(x, dim, PART, KEPT), wanted, shape[1])


def test_in_the_interpreter() -> None:
    if interpreting():
        return
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-rs", __file__],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "runs in the interpreter" not in done.stdout
