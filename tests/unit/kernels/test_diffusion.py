"""Kernels of text-to-image models: every implementation on this machine against the formulas in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from fastkernels import kernels
from tests.diffusion_cases import (
    frame_attention_cases,
    group_norm_cases,
    modulated_layer_norm_cases,
    rope_pairs_cases,
    sinusoidal_cases,
    upsample_cases,
)
from tests.pointwise_cases import check, run
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

NORMS = modulated_layer_norm_cases([(1, 1, 64), (3, 7, 24), (2, 5, 1500), (2, 0, 8)])
ROTATIONS = rope_pairs_cases([(1, 1, 1, 2), (2, 7, 4, 16), (1, 3, 3, 40), (1, 0, 2, 8)])
SINUSOIDS = sinusoidal_cases()
# One pixel; parts and tiles that are not full; groups of no power of two; several programs of channels.
GROUP_NORMS = group_norm_cases(
    [
        (3, 1, 1, 8, 2),
        (2, 13, 11, 24, 8),
        (2, 5, 7, 20, 4),
        (1, 3, 5, 640, 32),
        (1, 4, 4, 12, 1),
        (0, 4, 4, 8, 2),
    ]
)
# A lone frame; one new one, all, and some; heads of no power of two; a tile that is not full.
FRAMES = frame_attention_cases([(2, 1, 1, 1, 4), (3, 1, 7, 4, 16), (2, 5, 5, 3, 40), (2, 2, 9, 2, 64)])
UPSAMPLES = upsample_cases([(1, 1, 1, 3), (2, 3, 5, 24), (1, 4, 2, 640), (0, 2, 2, 8)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*NORMS, *ROTATIONS, *GROUP_NORMS, *UPSAMPLES, *FRAMES], ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_against_the_formula(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", [*NORMS, *ROTATIONS, *GROUP_NORMS, *UPSAMPLES, *FRAMES], ids=str)
def test_torch_in_float32(case):
    check(case, torch.float32, "torch")


@pytest.mark.parametrize("case", SINUSOIDS, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_sinusoidal(case, impl):
    check(case, torch.float32, impl)


@pytest.mark.parametrize("case", [*NORMS, *ROTATIONS, *SINUSOIDS, *GROUP_NORMS, *UPSAMPLES, *FRAMES], ids=str)
def test_reference_is_exact_in_float64(case):
    args = case.make(torch.float64)
    for found, exact in zip(run(case.kernel, args, "reference"), case.answer(*args), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_sinusoidal_keeps_the_phase_of_a_large_number(impl):
    """A product in float32 would be wrong by 2e-4 at 3504, one in 16 bits by whole turns."""
    features = kernels.sinusoidal(torch.tensor([3504.0]), 256, 10000.0, impl=impl)[0].double()
    rates = torch.tensor([10000.0 ** (-k / 128) for k in range(128)], dtype=torch.float64)
    exact = torch.cat(((3504 * rates).cos(), (3504 * rates).sin()))
    assert (features - exact).abs().max() < 1e-6
    assert features[0].item() == pytest.approx(math.cos(3504.0), abs=1e-6), "the cosines come first"


def test_sinusoidal_refuses_16_bits():
    with pytest.raises(ValueError, match="bfloat16"):
        kernels.sinusoidal(torch.ones(1, dtype=torch.bfloat16), 8, 100.0)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_large_mean_does_not_hide_the_variance(impl):
    """mean(x^2) - mean(x)^2 in float32 would be 0 or negative here."""
    x = torch.tensor([[[4096.0 + i % 2 for i in range(64)]]])
    y = kernels.modulated_layer_norm(x, torch.ones(1, 64), torch.zeros(1, 64), 1e-6, impl=impl)
    torch.testing.assert_close(y, (x - 4096.5) * 4, rtol=1e-4, atol=0)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_large_mean_does_not_hide_the_variance_of_a_group(impl):
    x = torch.full((1, 64, 64, 16), 4096.0) + torch.arange(16) % 2
    y = kernels.group_norm(x, torch.ones(16), torch.zeros(16), 4, 1e-6, impl=impl)
    torch.testing.assert_close(y, (x - 4096.5) * 2, rtol=1e-4, atol=0)


def test_torch_norms_groups_of_16_bits_in_float32(monkeypatch):
    """PyTorch on CUDA keeps a group's mean and scale in the dtype of the map: it must not be 16 bits."""
    given = []
    group_norm = F.group_norm
    monkeypatch.setattr(F, "group_norm", lambda x, *rest: given.append(x.dtype) or group_norm(x, *rest))
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0)).bfloat16() + 3
    args = (torch.ones(8).bfloat16(), torch.zeros(8).bfloat16(), 2, 1e-6, "silu")
    y = kernels.group_norm(x, *args, impl="torch")
    assert given == [torch.float32]
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, kernels.group_norm(x, *args, impl="reference"), rtol=2**-7, atol=2**-9)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_images_do_not_see_each_other(impl):
    """Each has moments of its own."""
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    args = (torch.ones(8), torch.zeros(8), 2, 1e-6, "silu")
    alone = kernels.group_norm(x[1:], *args, impl=impl)
    both = kernels.group_norm(torch.cat((100 * x[:1], x[1:])), *args, impl=impl)
    torch.testing.assert_close(both[1:], alone, rtol=0, atol=1e-6)


def test_group_norms_that_are_refused():
    x, ones = torch.zeros(1, 2, 2, 12), torch.ones(12)
    with pytest.raises(ValueError, match="12 channels are no 5 groups"):
        kernels.group_norm(x, ones, ones, 5, 1e-6)
    with pytest.raises(ValueError, match="'relu'"):
        kernels.group_norm(x, ones, ones, 4, 1e-6, "relu")  # type: ignore[arg-type]
