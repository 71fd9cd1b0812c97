"""Clouds of voxels as models are asked for their features, several of them as one launch; and how voxels in
an order are cut into patches."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.batching import Crossing, described, require_values, words_of
from fastkernels.nn.program import Place

COORDINATE_BITS = 16
MOST_VOXELS = 1 << 19  # of a request, and of a launch
# Of the coordinates of a voxel, packed in one number: without the bit that each hands to the one below it.
_HALVED = 0x7FFF_7FFF_7FFF


def batch_of(offset_B: Tensor, voxels: int) -> Tensor:
    """int64 [N]: the cloud of each voxel, of the numbers of voxels up to the end of each cloud."""
    place_N = torch.arange(voxels, device=offset_B.device)
    return torch.searchsorted(offset_B.long(), place_N, right=True)


def num_padded(counts: Sequence[int], patch_size: int) -> int:
    """Voxels of all patches, borrowed ones included; a cloud that is shorter than a patch is one alone."""
    return sum(num if num < patch_size else -(-num // patch_size) * patch_size for num in counts)


def patches(batch_N: Tensor, counts: Sequence[int], patch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """(pad [T], unpad [N], cu_seqlens int32 [P + 1]): the voxel of each place of the patches, the place of
    each voxel, and where patches begin.

    A cloud that is longer than a patch is cut into patches of equal lengths: behind its last voxels the last
    patch has those of the patch before that have the same places. batch: rising. counts: voxels of each
    cloud, known to the host. No tensor is read there.
    """
    device, clouds = batch_N.device, len(counts)
    cloud_B1 = torch.arange(clouds + 1, device=device)
    starts_B1 = torch.searchsorted(batch_N, cloud_B1)  # among voxels
    count_B = starts_B1[1:] - starts_B1[:-1]
    cut_B = -(-count_B // patch_size)
    ends_B, cut_ends_B = (
        torch.where(count_B < patch_size, count_B, cut_B * patch_size).cumsum(0),
        cut_B.cumsum(0),
    )
    first_B = starts_B1[:-1]
    shift_B = torch.cat((ends_B.new_zeros(1), ends_B[:-1])) - first_B  # from a voxel to its place
    place_T = torch.arange(num_padded(counts, patch_size), device=device)
    cloud_T = torch.searchsorted(ends_B, place_T, right=True)
    pad_T = place_T - shift_B[cloud_T]
    pad_T = torch.where(pad_T < starts_B1[1:][cloud_T], pad_T, pad_T - patch_size)
    unpad_N = torch.arange(len(batch_N), device=device) + shift_B[batch_N]
    patch_P = torch.arange(sum(-(-num // patch_size) for num in counts), device=device)
    cloud_P = torch.searchsorted(cut_ends_B, patch_P, right=True)
    within_P = patch_P - (cut_ends_B - cut_B)[cloud_P]
    begin_P = (first_B + shift_B)[cloud_P] + within_P * patch_size
    return pad_T, unpad_N, torch.cat((begin_P, ends_B[-1:])).int()


def typical(voxels: Sequence[int], levels: int) -> tuple[int, list[int]]:
    """(bits of a coordinate, how many voxels each cloud has at each level) of points anywhere on a surface:
    of its cells at a level, n for each point, points miss a share of exp(-1 / n)."""
    depth = max(levels, max(voxels).bit_length() - 3)
    counts = list(voxels)
    for level in range(1, levels):
        cells = 1.2 * 4 ** (depth - level)
        halved = [
            min(num, math.ceil(cells * -math.expm1(-of / cells)))
            for num, of in zip(counts[-len(voxels) :], voxels)
        ]
        counts += halved
    return depth, counts


class Clouds:
    """Requests of features [n, C] and integer coordinates [n, 3] of different voxels.

    A launch gets features [N, C], coordinates int32 [N, 3], the ends of clouds int32 [B], of each level the
    voxels of each cloud, and the bits of the largest coordinate. From level to level the side doubles. Clouds
    of as many bits share a launch: the curves through them are the same as alone.
    """

    def __init__(self, channels: int, levels: int, place: Place) -> None:
        self.channels, self.levels = channels, levels
        self.device, self.dtype = place

    def read(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """(features, coordinates, voxels at each level, bits); a RequestError names what is wrong."""
        feat, grid_coord = args
        for name, value in (("feat", feat), ("grid_coord", grid_coord)):
            if isinstance(value, Tensor):
                require_values(name, value)
        is_integer = isinstance(grid_coord, Tensor) and grid_coord.dtype in (torch.int32, torch.int64)
        if not is_integer or grid_coord.dim() != 2 or grid_coord.shape[1] != 3:
            raise RequestError(f"grid_coord must be int64 or int32 [voxels, 3], not {described(grid_coord)}")
        voxels = len(grid_coord)
        if not 1 <= voxels <= MOST_VOXELS:
            raise RequestError(f"a cloud of {voxels} voxels: they are 1 to {MOST_VOXELS}. Cut it")
        if (
            not isinstance(feat, Tensor)
            or not feat.is_floating_point()
            or feat.shape != (voxels, self.channels)
        ):
            raise RequestError(f"feat must be floats [{voxels}, {self.channels}], not {described(feat)}")
        if not bool(feat.isfinite().all()):
            raise RequestError("feat has values that are not finite")
        grid_N3 = grid_coord.to("cpu", torch.int64).numpy()
        bits = int(grid_N3.max()).bit_length()
        if grid_N3.min() < 0 or bits > COORDINATE_BITS:
            raise RequestError(
                f"grid_coord goes from {grid_N3.min()} to {grid_N3.max()}: coordinates are 0 to "
                f"{(1 << COORDINATE_BITS) - 1}. Take off the smallest of each axis"
            )
        if bits < self.levels - 1:
            raise RequestError(
                f"grid_coord goes to {grid_N3.max()}: a cloud that is halved {self.levels - 1} times has a "
                f"coordinate of at least {1 << self.levels - 2}. Take smaller voxels"
            )
        return feat, grid_N3.astype(np.int32), self._counts(grid_N3), bits

    def _counts(self, grid_N3: np.ndarray) -> list[int]:
        key_N = grid_N3[:, 0] << 2 * COORDINATE_BITS | grid_N3[:, 1] << COORDINATE_BITS | grid_N3[:, 2]
        keys, counts = np.unique(key_N), []
        if twice := len(key_N) - len(keys):
            raise RequestError(f"grid_coord has {twice} voxels twice: merge the points of a voxel")
        for _ in range(self.levels):
            counts.append(len(keys))
            keys = np.unique(keys >> 1 & _HALVED)
        return counts

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """The bits of coordinates."""
        return args[3]

    def fitting(self, calls: Sequence[tuple[Any, ...]]) -> int:
        ends = np.cumsum([len(call[1]) for call in calls])
        return max(1, int((ends <= MOST_VOXELS).sum()))

    def largest(self) -> list[Any]:
        """One cloud, a plane."""
        place_N = np.arange(MOST_VOXELS)
        grid_N3 = np.stack((place_N >> 9, place_N & 511, np.zeros_like(place_N)), 1)
        feat = torch.zeros(MOST_VOXELS, self.channels)
        return self.join([self.read((feat, torch.from_numpy(grid_N3)))])

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        ends = np.cumsum([len(call[1]) for call in calls])
        crossing = Crossing(
            self.device,
            ((int(ends[-1]), self.channels), self.dtype),
            ((int(ends[-1]), 3), torch.int32),
            ((len(calls),), torch.int32),
        )
        feat_NC, grid_N3, offset_B = crossing.arrays()
        for call, end in zip(calls, ends):
            part = slice(end - len(call[1]), end)
            feat_NC[part], grid_N3[part] = words_of(call[0], self.dtype), call[1]
        offset_B[...] = ends
        counts = [num for of_level in zip(*(call[2] for call in calls)) for num in of_level]
        return [crossing, counts, calls[0][3]]

    def divide(self, result: Tensor, calls: Sequence[tuple[Any, ...]]) -> Sequence[Tensor]:
        return result.split([len(call[1]) for call in calls])
