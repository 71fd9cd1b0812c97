"""conv1d: the implementations against sums written out in float64."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON


def written_out(x, weight, bias, stride, padding):
    clips, _, frames = x.shape
    out = [[] for _ in range(clips)]
    for clip in range(clips):
        for start in range(-padding, frames + padding - weight.shape[2] + 1, stride):
            total = bias.double().clone()
            for tap in range(weight.shape[2]):
                if 0 <= start + tap < frames:
                    total += weight[:, :, tap].double() @ x[clip, :, start + tap].double()
            out[clip].append(total)
    return torch.stack([torch.stack(row, 1) for row in out])


@pytest.mark.parametrize(("stride", "padding", "taps"), [(1, 1, 3), (2, 1, 3), (1, 0, 1), (3, 2, 5)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_sums(impl, dtype, stride, padding, taps):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((2, 5, 11), (7, 5, taps), (7,))
    )
    found = kernels.conv1d(x, weight, bias, stride, padding, impl=impl)
    wanted = written_out(x, weight, bias, stride, padding)
    assert found.dtype == dtype
    assert found.is_contiguous()
    limit = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=limit)
    without = kernels.conv1d(x, weight, None, stride, padding, impl=impl)
    torch.testing.assert_close(without.double() + bias.double()[:, None], wanted, rtol=0, atol=limit)


def test_the_shape_is_known_without_computing():
    x, weight = torch.empty(2, 5, 11, device="meta"), torch.empty(7, 5, 3, device="meta")
    for stride, padding in ((1, 1), (2, 1), (3, 0)):
        real = kernels.conv1d(torch.zeros(2, 5, 11), torch.zeros(7, 5, 3), None, stride, padding)
        assert kernels.conv1d(x, weight, None, stride, padding).shape == real.shape
