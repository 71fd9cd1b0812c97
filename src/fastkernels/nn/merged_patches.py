"""Images and videos of any size as packed patches for a tower that merges m x m of them into one token.

    sides     to the nearest multiples of m times the patch size, within bounds of their product
    patches   (step, row of blocks, column of blocks, row and column in the block): a block's lie together
    values    (frame, row, column, channel) of a patch over `frames` frames; an image stands for all of them

The resizing is PyTorch's bicubic of bytes, that of the usual Hugging Face processors; Pillow's differs by one
in rare values, and where it takes the axes in the other order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fastkernels.errors import RequestError
from fastkernels.nn.batching import described, require_values, sent, together
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.media import Item, grid_offsets
from fastkernels.nn.program import Call, Place
from fastkernels.records import Batch

CHANNELS = 3
MOST_RATIO = 200  # of sides: the processors refuse more
MOST_FRAMES = 768
MOST_PATCHES = 1 << 16  # of a launch: those of the largest image
_DIGEST_BYTES = 16
_WORKERS = ThreadPoolExecutor(8, "pictures")  # hashing and resizing let other threads run meanwhile


@dataclass(frozen=True, slots=True)
class Patching:
    """patch_size in pixels, merge_size in patches of a block's side, frames of a patch."""

    patch_size: int
    merge_size: int
    frames: int

    @classmethod
    def of(cls, vision_config: ConfigReader) -> Patching:
        """As a tower's configuration says it; a UsageError names the key that is wrong."""
        if vision_config.integer("in_channels") != CHANNELS:
            raise vision_config.error("in_channels", f"must be {CHANNELS}")
        keys = ("patch_size", "spatial_merge_size", "temporal_patch_size")
        return cls(*map(vision_config.integer, keys))

    @property
    def values(self) -> int:
        return self.frames * self.patch_size**2 * CHANNELS

    @property
    def multiple(self) -> int:
        return self.patch_size * self.merge_size

    def example(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, int]:
        """What a launch gets (MergedPatches), of frames as long as the batch's rows."""
        frames = len(batch.seq_lens)
        pixels_PV = torch.empty(batch.num_tokens, self.values)
        shapes_B2 = torch.empty(frames, 2, dtype=torch.int64)
        starts_B1 = torch.empty(frames + 1, dtype=torch.int32)
        return pixels_PV, shapes_B2, starts_B1, max(batch.seq_lens)


class Frames:
    """uint8 [F, Y, X, C] on the host, which nobody changes, and which become height x width: `steps` grids of
    patches. Other threads hash and resize them."""

    def __init__(self, pixels: Tensor, height: int, width: int, steps: int) -> None:
        self.pixels, self.height, self.width, self.steps = pixels, height, width, steps
        self._digest = _WORKERS.submit(self._hashed)
        self._pixels: Future[Tensor] | None = None

    @property
    def digest(self) -> bytes:
        return self._digest.result()

    def begin(self) -> None:
        """Resize them, while others wait."""
        if self._pixels is None:
            self._pixels = _WORKERS.submit(self._resized)

    def resized(self) -> Tensor:
        """uint8 [F, height, width, C]"""
        self.begin()
        assert self._pixels is not None
        return self._pixels.result()

    def _hashed(self) -> bytes:
        content = hashlib.blake2b(self.pixels.numpy().data, digest_size=_DIGEST_BYTES)
        content.update(repr((tuple(self.pixels.shape), self.height, self.width)).encode())
        return content.digest()

    def _resized(self) -> Tensor:
        sides = (self.height, self.width)
        if tuple(self.pixels.shape[1:3]) == sides:
            return self.pixels
        pixels_FCYX = self.pixels.permute(0, 3, 1, 2)
        resized = functional.interpolate(pixels_FCYX, sides, mode="bicubic", antialias=True)
        return resized.permute(0, 2, 3, 1).contiguous()


class Pictures:
    """Images, uint8 [H, W, 3], or videos, uint8 [F, H, W, 3] with `is_video`. least, most: pixels of a frame
    after resizing."""

    def __init__(
        self, placeholder: int, stage: str, patching: Patching, least: int, most: int, is_video: bool = False
    ) -> None:
        self.placeholder, self.stage, self.patching = placeholder, stage, patching
        self.least, self.most, self.is_video = least, most, is_video

    def item(self, given: Tensor, about: Any = None) -> Item:
        if about is not None:
            raise RequestError(f"nothing is said beside {self._what}, not {about!r:.60}")
        frames = self.frames(given)
        return Item(Call(self.stage, frames), (grid_offsets(frames.steps, *self.blocks_of(frames)),))

    def blocks_of(self, frames: Frames) -> tuple[int, int]:
        """Rows and columns of blocks of a step."""
        return frames.height // self.patching.multiple, frames.width // self.patching.multiple

    @property
    def _what(self) -> str:
        return "a video" if self.is_video else "an image"

    def sides(self, count: int, height: int, width: int) -> tuple[int, int]:
        """After resizing, of so many frames."""
        return fitted(height, width, self.patching.multiple, self.least, self.most)

    def frames(self, given: Tensor) -> Frames:
        what = self._what
        if isinstance(given, Tensor):
            require_values(what, given)
        form = "[frames, height, width, 3]" if self.is_video else "[height, width, 3]"
        is_kind = isinstance(given, Tensor) and given.dtype == torch.uint8
        if not is_kind or given.dim() != 3 + self.is_video:
            raise RequestError(f"{what} must be a uint8 tensor or array {form}, not {described(given)}")
        if given.shape[-1] != CHANNELS:
            are_first = given.shape[-3] == CHANNELS
            advice = "Put them last (permute)" if are_first else "Convert it to RGB"
            raise RequestError(f"{what} has {given.shape[-1]} channels, the model takes 3. {advice}")
        pixels = given.detach().cpu().contiguous()
        pixels = pixels if self.is_video else pixels[None]
        count, height, width, _ = pixels.shape
        if not pixels.numel():
            raise RequestError(f"{what} {list(given.shape)} is empty")
        if count > MOST_FRAMES:
            raise RequestError(f"a video of {count} frames: the model takes up to {MOST_FRAMES}. Sample some")
        return Frames(pixels, *self.sides(count, height, width), -(-count // self.patching.frames))


def fitted(
    height: int, width: int, multiple: int, least: int, most: int, frames: int = 1, together: int = 1
) -> tuple[int, int]:
    """The sides that an image gets: multiples of `multiple`, their product from `least` to `most`, nearly in
    the same ratio. Of a video the product with its frames, which count as the nearest multiple of
    `together`. RequestError for sides too unlike each other."""
    if max(height, width) > MOST_RATIO * min(height, width):
        raise RequestError(
            f"an image of {height} x {width} pixels: one side may be {MOST_RATIO} times the other at most. "
            "Cut it"
        )
    sides = [round(side / multiple) * multiple for side in (height, width)]
    counted = round(frames / together) * together * math.prod(sides)
    if counted > most:
        scale = math.sqrt(frames * height * width / most)
        sides = [max(1, math.floor(side / scale / multiple)) * multiple for side in (height, width)]
    elif counted < least:
        scale = math.sqrt(least / (frames * height * width))
        sides = [math.ceil(side * scale / multiple) * multiple for side in (height, width)]
    return sides[0], sides[1]


def bounds(processor: Mapping[str, Any], otherwise: tuple[int, int]) -> tuple[int, int]:
    """Least and most pixels of an image, as a preprocessor_config.json says them; UsageError for what are
    none."""
    size = ConfigReader(processor, "preprocessor_config.json: ").section("size")
    found = []
    for key, edge, default in zip(("min_pixels", "max_pixels"), ("shortest_edge", "longest_edge"), otherwise):
        reader = ConfigReader(processor, "preprocessor_config.json: ")
        found.append(reader.integer(key, default=size.integer(edge, default=default)))
    return found[0], found[1]


class MergedPatches:
    """A launch gets pixel_values [P, V] of patches, less the mean of each channel and over its standard
    deviation; spatial_shapes int64 [B, 2], rows and columns of each frame's grid, cu_seqlens int32 [B+1] of
    its patches, and the longest one's. It returns a row for each block of patches [P / m^2, D]."""

    def __init__(
        self, patching: Patching, place: Place, mean: Sequence[float], deviation: Sequence[float]
    ) -> None:
        self.patching = patching
        self.device, self.dtype = place
        mean_C, std_C = (torch.tensor(of, device=self.device) for of in (mean, deviation))
        self.scale_C, self.shift_C = 1 / (255 * std_C), -mean_C / std_C

    def key(self, args: tuple[Any, ...]) -> Hashable:
        """All fit together. Their resizing begins when they are queued."""
        (frames,) = args
        frames.begin()
        return None

    def fitting(self, calls: Sequence[tuple[Any, ...]]) -> int:
        """How many of the first calls one launch takes."""
        totals = accumulate(self._patches_of(frames) for (frames,) in calls)
        return max(1, sum(total <= MOST_PATCHES for total in totals))

    def largest(self) -> list[Any]:
        """The arguments of the largest launch, of frames of less: memory goes by patches, time by frames."""
        side = 128
        frames, patches = MOST_PATCHES // side**2, side**2
        pixels_PV = torch.zeros(MOST_PATCHES, self.patching.values, dtype=self.dtype, device=self.device)
        grids = torch.full((frames, 2), side, device=self.device)
        starts_B1 = torch.arange(frames + 1, dtype=torch.int32, device=self.device) * patches
        return [pixels_PV, grids, starts_B1, patches]

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        all_frames = [frames for (frames,) in calls]
        resized = [frames.resized() for frames in all_frames]
        runs = [list(run) for _, run in groupby(resized, key=lambda pixels: pixels.shape)]
        pixels_PV = torch.cat([self._patches(run) for run in runs])
        size = self.patching.patch_size
        grids = [(f.height // size, f.width // size) for f in all_frames for _ in range(f.steps)]
        lengths = [rows * columns for rows, columns in grids]
        starts_B1 = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        spans = sent(torch.tensor(grids), self.device), sent(starts_B1, self.device)
        return [pixels_PV, *spans, max(lengths)]

    def divide(self, result: Tensor, calls: Sequence[tuple[Any, ...]]) -> Sequence[Tensor]:
        block = self.patching.merge_size**2
        return result.split([self._patches_of(frames) // block for (frames,) in calls])

    def _patches_of(self, frames: Frames) -> int:
        return frames.steps * frames.height * frames.width // self.patching.patch_size**2

    def _patches(self, videos: Sequence[Tensor]) -> Tensor:
        """Of videos of one size: [patches, V]"""
        size, merge, count = self.patching.patch_size, self.patching.merge_size, self.patching.frames
        pixels_NFYXC = sent(together(videos, self.device), self.device)
        pixels_NFYXC = torch.addcmul(self.shift_C, pixels_NFYXC, self.scale_C).to(self.dtype)
        missing = -pixels_NFYXC.shape[1] % count
        last = pixels_NFYXC[:, -1:].expand(-1, missing, -1, -1, -1)
        steps = torch.cat((pixels_NFYXC, last), dim=1).unflatten(1, (-1, count))
        blocks = steps.unflatten(4, (-1, merge, size)).unflatten(3, (-1, merge, size))
        # N, step, frame, row of blocks, row, y, column of blocks, column, x, channel
        return blocks.permute(0, 1, 3, 6, 4, 7, 2, 5, 8, 9).reshape(-1, self.patching.values)


def patch_places(
    spatial_shapes: Tensor, cu_seqlens: Tensor, num_patches: int, merge_size: int
) -> tuple[Tensor, Tensor]:
    """int64 [P, 2] each: row and column of each patch in its frame's grid, and that grid's rows and columns.
    A block's patches lie together, row by row; arguments as of a launch."""
    sides_P2 = torch.repeat_interleave(spatial_shapes, cu_seqlens.diff(), dim=0, output_size=num_patches)
    begins_P = torch.repeat_interleave(cu_seqlens[:-1], cu_seqlens.diff(), dim=0, output_size=num_patches)
    place_P = torch.arange(num_patches, device=spatial_shapes.device) - begins_P
    block_P, inside_P = place_P // merge_size**2, place_P % merge_size**2
    columns_P = sides_P2[:, 1] // merge_size
    row_P = block_P // columns_P * merge_size + inside_P // merge_size
    column_P = block_P % columns_P * merge_size + inside_P % merge_size
    return torch.stack((row_P, column_P), dim=1), sides_P2
