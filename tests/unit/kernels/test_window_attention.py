"""Attention in windows and the residual norm of Swin V2: every implementation on this machine against the
equations in float64, pixel by pixel."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import registered
from tests.unit.kernels.implementations import REFERENCE, TORCH, TRITON
from tests.unit.kernels.test_convolution import close, drawn, each_dtype

PARTS = pytest.param("parts", id="parts")
# (images, rows, columns, heads, head size, window, shift): whole windows; several tiles of queries and keys;
# windows that are filled up at the ends, on one axis, and where the map is smaller than one; a window of one.
CASES = {
    "whole": (2, 8, 4, 2, 16, 4, 0),
    "shifted": (1, 8, 8, 2, 16, 4, 2),
    "tiles": (1, 24, 12, 1, 32, 12, 6),
    "filled": (1, 5, 7, 3, 8, 4, 0),
    "filled-shifted": (2, 6, 9, 1, 20, 4, 2),
    "odd-shift": (1, 7, 6, 2, 8, 3, 1),
    "small": (2, 2, 3, 2, 8, 4, 2),
    "single": (1, 2, 3, 2, 8, 1, 0),
}


def arguments(name: str, dtype: torch.dtype) -> tuple:
    """Lengths of q and k differ by a factor of 30, and scales reach the largest."""
    images, rows, columns, heads, size, window, shift = CASES[name]
    qkv = drawn(images, rows, columns, 3 * heads * size) * torch.logspace(-1, 0.5, columns)[:, None]
    filler = drawn(3 * heads * size, seed=1)
    scale = torch.logspace(0.5, 1.5, heads)
    table = 8 + 4 * drawn(heads, (2 * window - 1) ** 2, seed=2)
    return qkv.to(dtype), filler.to(dtype), scale, table, window, shift


def attended(
    qkv: Tensor, filler: Tensor, scale: Tensor, table: Tensor, window: int, shift: int, apart: float = -100.0
) -> Tensor:
    """Of each pixel alone, by where it lies in the rolled map."""
    images, rows, columns, channels = qkv.shape
    heads, size = len(scale), channels // (3 * len(scale))
    high, wide = (-(-length // window) * window for length in (rows, columns))
    qkv, filler, scale, table = (tensor.double() for tensor in (qkv, filler, scale, table))
    out = torch.zeros(images, rows, columns, heads, size, dtype=torch.float64)

    def pixel(b: int, y: int, x: int) -> Tensor:
        source = qkv[b, (y + shift) % rows, (x + shift) % columns] if y < rows and x < columns else filler
        return source.view(3, heads, size)

    def region(y: int, x: int) -> tuple[int, int]:
        return tuple((at >= n - window) + (at >= n - shift) for at, n in ((y, high), (x, wide)))  # type: ignore[return-value]

    for b, y, x in product(range(images), range(rows), range(columns)):
        top, left = y // window * window, x // window * window
        q = F.normalize(pixel(b, y, x)[0], dim=-1)
        scores, values = [], []
        for v, u in product(range(top, top + window), range(left, left + window)):
            _, k, value = pixel(b, v, u)
            place = (y - v + window - 1) * (2 * window - 1) + x - u + window - 1
            score = scale * (q * F.normalize(k, dim=-1)).sum(-1) + table[:, place]
            scores.append(score + (apart if shift and region(y, x) != region(v, u) else 0))
            values.append(value)
        weights = torch.stack(scores).softmax(0)
        out[b, (y + shift) % rows, (x + shift) % columns] = (weights[..., None] * torch.stack(values)).sum(0)
    return out.flatten(3)


@each_dtype
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_window_attention(impl: str, name: str, dtype: torch.dtype):
    args = arguments(name, dtype)
    wanted, found = attended(*args), kernels.window_attention(*args, impl=impl)
    if dtype == torch.float32 or impl == "reference":
        close(found, wanted, sums=64)
        return
    # Weights are rounded, and PyTorch's masks and unit vectors too: a score of 30 by up to 0.06.
    tolerance = torch.finfo(dtype).eps * (60 if impl == "torch" else 8) * wanted.abs().max()
    assert found.is_contiguous()
    assert (found.double() - wanted).abs().max() < tolerance


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_what_fills_a_window_up_is_a_key_without_direction(impl: str):
    """A filler with k = 0 weighs by its place alone; masked away, all results would be others."""
    qkv, filler, scale, table, window, shift = arguments("filled", torch.float32)
    filler = filler.clone()
    filler.view(3, -1)[1] = 0
    args = (qkv, filler, scale, table, window, shift)
    found = kernels.window_attention(*args, impl=impl)
    close(found, attended(*args), sums=64)
    louder = filler.clone()
    louder.view(3, -1)[2] += 1
    moved = kernels.window_attention(qkv, louder, *args[2:], impl=impl) - found
    assert min(moved[:, 4:].abs().max(), moved[:, :, 4:].abs().max()) > 1e-2
    assert moved[:, :4, :4].abs().max() == 0


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_what_lies_apart_is_lowered_by_100_and_not_left_out(impl: str):
    """With a scale of 100 keys in and against the direction of a query are 200 apart: another region's may
    still win."""
    qkv, filler, scale, table, window, shift = arguments("shifted", torch.float32)
    qkv = qkv.clone()
    q, k, _ = qkv.unflatten(-1, (3, 2, 16)).unbind(3)
    q[:], k[:] = 1, -1
    k[:, :, :4] = 1
    args = (qkv, filler, torch.full_like(scale, 100.0), table, window, shift)
    wanted = attended(*args)
    assert (wanted - attended(*args, apart=-1e9)).abs().max() > 1e-2
    found = kernels.window_attention(*args, impl=impl)
    assert (found.double() - wanted).abs().max() < 1e-3


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_vectors_of_zeros_have_no_direction_and_are_no_nan(impl: str):
    _, filler, scale, table, window, shift = arguments("whole", torch.float32)
    args = (torch.zeros(2, 8, 4, 96), filler, scale, table, window, shift)
    assert kernels.window_attention(*args, impl=impl).abs().max() == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({3: torch.zeros(2, 48)}, r"table of \[2, 48\], 2 scales and 96 channels"),
        ({2: torch.zeros(3)}, "3 scales"),
        ({5: 4}, "shift of 4 is not within windows of 4 x 4"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[int, object], says: str):
    args = [change.get(i, arg) for i, arg in enumerate(arguments("whole", torch.float32))]
    with pytest.raises(ValueError, match=says):
        kernels.window_attention(*args)  # type: ignore[arg-type]


@each_dtype
@pytest.mark.parametrize("impl", [REFERENCE, PARTS, TRITON])
def test_layer_norm_add(impl: str, dtype: torch.dtype):
    for shape in ((37, 64), (2, 3, 5, 33), (1, 1536), (0, 16)):
        x, residual = 3 * drawn(*shape, dtype=dtype) + 1, drawn(*shape, dtype=dtype, seed=1)
        weight, bias = (drawn(shape[-1], dtype=dtype, seed=seed) for seed in (2, 3))
        found = kernels.layer_norm_add(x, residual, weight, bias, 1e-5, impl=impl)
        wide = [tensor.double() for tensor in (x, weight, bias)]
        wanted = residual.double() + F.layer_norm(wide[0], shape[-1:], *wide[1:], 1e-5)
        assert found.shape == x.shape
        if len(x):
            close(found, wanted, sums=shape[-1])


@pytest.mark.parametrize("impl", [TRITON])
def test_views_are_left_to_others(impl: str):
    args = list(arguments("whole", torch.float32))
    args[0] = args[0].transpose(1, 2)
    assert "contiguous" in (registered["window_attention"].why_not(impl, args) or "")
    torch.testing.assert_close(
        kernels.window_attention(*args), kernels.window_attention(*args, impl="reference")
    )
