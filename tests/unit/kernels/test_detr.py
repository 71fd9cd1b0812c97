"""The kernels of a DETR: every implementation on this machine against torch, in float64 where it computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels import kernels
from tests.pointwise_cases import worst_row_error
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON
from tests.unit.kernels.test_convolution import drawn

# Rows and columns of maps, one of a single row.
MAPS = [[(5, 7)], [(6, 4), (3, 2), (1, 9)], [(8, 8), (4, 4), (2, 2), (1, 1)]]


def sampled(value: Tensor, maps: list[tuple[int, int]], places: Tensor, weights: Tensor) -> Tensor:
    """By grid_sample in float64, image by image and head by head."""
    batch, queries, heads, count = weights.shape
    out = torch.zeros(batch, queries, heads, value.shape[-1], dtype=torch.float64)
    points, first = count // len(maps), 0
    for level, (rows, columns) in enumerate(maps):
        mine = slice(level * points, (level + 1) * points)
        for b in range(batch):
            for h in range(heads):
                image = value[b, first : first + rows * columns, h].double().T.reshape(1, -1, rows, columns)
                grid = places[b, :, h, mine].double() * 2 - 1
                found = F.grid_sample(image, grid[None], padding_mode="zeros", align_corners=False)[0]
                out[b, :, h] += (found * weights[b, :, h, mine].double()).sum(-1).T
        first += rows * columns
    return out


def sampling(maps: list[tuple[int, int]], heads: int, size: int, points: int, dtype: torch.dtype):
    """Places within, at the border and far outside."""
    generator = torch.Generator().manual_seed(len(maps))
    cells, count = sum(rows * columns for rows, columns in maps), points * len(maps)
    places = torch.rand(2, 11, heads, count, 2, generator=generator) * 1.6 - 0.3
    places[0, 0], places[0, 1], places[0, 2], places[0, 3] = 0, 1, -50, 1e9
    weights = torch.randn(2, 11, heads, count, generator=generator).softmax(-1)
    value = torch.randn(2, cells, heads, size, generator=generator).to(dtype)
    return value, [side for sides in maps for side in sides], places, weights


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("maps", MAPS, ids=len)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_deformable_sampling(impl: str, maps: list[tuple[int, int]], dtype: torch.dtype):
    value, sides, places, weights = sampling(maps, 3, 20, 4 if len(maps) < 4 else 1, dtype)
    found = kernels.deformable_sampling(value, sides, places, weights, impl=impl)
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert not found[0, 2:4].any(), "nothing is outside"
    assert found[0, 0].any(), "a quarter of the first cell is at the corner"
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    assert worst_row_error(found[1], sampled(value, maps, places, weights)[1]) < 1e-5 + rounding


def test_a_head_and_a_single_place():
    """Interpreted with one head of 64 features, and of the weight two kinds of float."""
    value, sides, places, weights = sampling([(3, 3)], 1, 64, 1, torch.float32)
    wanted = sampled(value, [(3, 3)], places, weights)
    found = kernels.deformable_sampling(value, sides, places, weights.double().float())
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda v, s, p, w: (v, [5], p, w), "rows and columns of each map"),
        (lambda v, s, p, w: (v, [5, 6], p, w), "30 cells, the value has 35"),
        (lambda v, s, p, w: (v, s, p[..., :1], w), "are not those of"),
        (lambda v, s, p, w: (v[:, :4], [2, 1, 2, 1], p[:, :, :, :3], w[..., :3]), "evenly into 2 maps"),
    ],
)
def test_what_does_not_fit_is_refused(change, says: str):
    with pytest.raises(ValueError, match=says):
        kernels.deformable_sampling(*change(*sampling([(5, 7)], 2, 8, 4, torch.float32)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
@pytest.mark.parametrize("window", [(2, 2, True), (2, 2, False), (3, 2, True), (3, 1, False)], ids=str)
def test_avg_pool2d(window: tuple[int, int, bool], impl: str, dtype: torch.dtype):
    size, stride, ceil_mode = window
    x = drawn(2, 7, 10, 12, dtype=dtype)
    found = kernels.avg_pool2d(x, *window, impl=impl)
    wanted = F.avg_pool2d(x.permute(0, 3, 1, 2).double(), size, stride, ceil_mode=ceil_mode)
    assert found.is_contiguous()
    assert worst_row_error(found, wanted.permute(0, 2, 3, 1)) <= 2 * torch.finfo(dtype).eps
    assert torch.empty(2, 7, 10, 12, device="meta").new_empty(found.shape).shape == found.shape
    assert kernels.avg_pool2d(x.to("meta"), *window).shape == found.shape


def test_windows_that_skip_or_miss_the_map_are_refused():
    with pytest.raises(ValueError, match="stride of 3 skips"):
        kernels.avg_pool2d(drawn(1, 4, 4, 8), 2, 3)
    with pytest.raises(ValueError, match="no window of 5 x 5"):
        kernels.avg_pool2d(drawn(1, 4, 4, 8), 5, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_top_cells_with_ties(impl: str, dtype: torch.dtype):
    """Few different logits, both zeros among them."""
    logits = (drawn(3, 60, 5) * 1.5).round().to(dtype)
    logits[:, ::7] *= -1
    found = kernels.top_cells(logits, 20, impl=impl)
    for image in range(3):
        values = logits[image].tolist()
        assert found[image].tolist() == sorted(range(60), key=lambda n: -max(values[n]))[:20]
    assert kernels.top_cells(logits[:, :7], 20, impl=impl).shape == (3, 7)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_box_refine(impl: str):
    """Boxes at and beyond the ends stay finite, and a delta of nothing changes no other."""
    deltas, boxes = drawn(2, 5, 4, dtype=torch.float16) * 2, torch.rand(2, 5, 4)
    boxes[0, :3] = torch.tensor([[0.0], [1.0], [1.5]])
    found = kernels.box_refine(deltas, boxes, impl=impl)
    assert found.dtype == torch.float32
    wanted = (deltas.double() + boxes.double().clamp(0, 1).logit(eps=1e-5)).sigmoid()
    inside = slice(3, None)
    torch.testing.assert_close(found[0, inside].double(), wanted[0, inside], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[0, :3].double(), wanted[0, :3], rtol=0, atol=1e-5)
    same = kernels.box_refine(torch.zeros(2, 5, 4), boxes, impl=impl)
    torch.testing.assert_close(same[1], boxes[1], rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="not those of boxes"):
        kernels.box_refine(deltas[:1], boxes, impl=impl)
