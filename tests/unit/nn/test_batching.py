"""Images as a launch of a model gets them, and signatures of arguments."""

from __future__ import annotations

import pytest
import torch

from fastkernels.nn.batching import IMAGENET, Pixels, key_of
from fastkernels.nn.program import Place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pixels_are_normalised_by_channel(dtype: torch.dtype):
    images = [
        torch.randint(256, (4, 6, 3), generator=torch.Generator().manual_seed(n)).byte() for n in (0, 1)
    ]
    pixels = Pixels(2, 3, Place(torch.device("cpu"), dtype), IMAGENET)
    (found_BHWC,) = pixels.prepare(*pixels.join([(image,) for image in images]))
    mean_C, std_C = (torch.tensor(values, dtype=torch.float64) for values in IMAGENET)
    wanted_BHWC = (torch.stack(images).double() / 255 - mean_C) / std_C
    assert found_BHWC.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found_BHWC.double(), wanted_BHWC, rtol=eps, atol=4 * eps)


def test_pixels_without_statistics_lie_within_0_and_1():
    pixels = Pixels(1, 1, Place(torch.device("cpu"), torch.float32))
    (found_BHWC,) = pixels.prepare(*pixels.join([(torch.tensor([[[0], [255]]]).byte(),)]))
    assert found_BHWC.flatten().tolist() == [0.0, 1.0]


def test_a_signature_may_leave_out_where_tensors_lie():
    """A graph serves a loop's first state, which the host has, and the later ones."""
    here, there = ([torch.zeros(2, 3, device=device), 4] for device in ("cpu", "meta"))
    assert key_of(here) != key_of(there)
    assert key_of(here, by_device=False) == key_of(there, by_device=False)
    assert key_of(here, by_device=False) != key_of([torch.zeros(3, 2), 4], by_device=False)
    assert key_of(here, by_device=False) != key_of([torch.zeros(2, 3).half(), 4], by_device=False)
