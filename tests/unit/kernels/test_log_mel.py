"""log_mel: the implementations against each other and on signals whose spectrum is known. Against
transformers' feature extractor: tests/parity/test_whisper.py."""

from __future__ import annotations

import math

import pytest
import torch

from fastkernels import kernels
from tests.unit.kernels.implementations import REFERENCE, TORCH

RATE, LENGTH, HOP = 16000, 400, 160


def arguments(audio_BN, bands=80):
    window = torch.hann_window(LENGTH, dtype=audio_BN.dtype)
    return audio_BN, window, kernels.mel_filters(bands, LENGTH, RATE).to(audio_BN.dtype), HOP


def test_implementations_agree_in_float64():
    audio = torch.randn(3, 4800, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = [kernels.log_mel(*arguments(audio), impl=impl) for impl in ("reference", "torch")]
    assert found[0].shape == (3, 80, 30)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_a_tone_lies_in_its_band(impl):
    """At 40 k Hz Hann's window leaves three frequencies: half of its sum, and half of that on both sides."""
    at = torch.arange(8000, dtype=torch.float64) / RATE
    for k in (10, 50, 150):
        tone = torch.sin(2 * math.pi * 40 * k * at).float()[None]
        *rest, filters, hop = arguments(tone)
        y = kernels.log_mel(*rest, filters, hop, impl=impl)[0, :, 10:40]
        energy_M = filters[:, k - 1 : k + 2] @ torch.tensor([0.25, 1, 0.25]) * (LENGTH / 4) ** 2
        assert y.argmax(0).unique().tolist() == [int(energy_M.argmax())]
        assert y.max().item() == pytest.approx((math.log10(energy_M.max()) + 4) / 4, abs=1e-4)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_levels_of_each_clip(impl):
    """A range of 8 below its own maximum; silence is the constant of the least energy."""
    noise = torch.randn(2, 4800, generator=torch.Generator().manual_seed(1))
    audio = torch.stack([noise[0], noise[1] * 0.1, torch.zeros(4800)])
    audio[:2, 2400:] = 0
    y = kernels.log_mel(*arguments(audio), impl=impl)
    for clip in y[:2]:
        assert (clip.max() - clip.min()).item() == pytest.approx(2, abs=1e-6)
    assert torch.equal(y[2], torch.full_like(y[2], -1.5))


def test_filters_have_one_area():
    filters = kernels.mel_filters(80, LENGTH, RATE)
    assert filters.shape == (80, 201)
    assert (filters >= 0).all()
    fine = kernels.mel_filters(80, 64 * LENGTH, RATE)
    area = fine.sum(1) * RATE / (64 * LENGTH)
    torch.testing.assert_close(area, torch.ones_like(area), rtol=2e-3, atol=0)
