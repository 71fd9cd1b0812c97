"""How calls of a stage become one: what they must have in common, and their arguments together.

Stacked     equal shapes, along a new first dimension
Packed      images of any resolution, their patches one behind the other
Pixels      images of one size, as they are
Videos      the same of videos, beside other arguments
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastkernels.errors import RequestError
from fastkernels.nn.program import Place

RUN_BYTES = 2**21  # sent at once. Estimated: on their way 50 us, where a launch costs the host 10
ALIGNED = 256  # bytes, at which any kernel may read as if the tensor were allocated alone
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation of its channels
MOST_PIXELS = 1 << 24  # of one image: far beyond it a pass takes all memory, and others' requests with it


class Stacked:
    """Tensors of the same shapes and dtypes, stacked on the device; equal other arguments, passed on as they
    are. device: None leaves tensors where they are."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def key(self, args: tuple[Any, ...]) -> Hashable:
        return key_of(args)

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [stack(column, self.device) for column in zip(*calls)]


class Packed:
    """Images uint8 [H, W, C], whose sides the patch size divides, as packed patches with values -1 .. 1.

    A launch gets pixel_values [T, P] (row, column, channel of a patch), spatial_shapes int64 [B, 2] in
    patches, cu_seqlens int32 [B+1], and the longest image's patches. Images of one size cross to the device
    together.
    """

    def __init__(self, patch_size: int, num_channels: int, place: Place) -> None:
        self.patch_size, self.num_channels = patch_size, num_channels
        self.device, self.dtype = place

    def key(self, args: tuple[Any, ...]) -> Hashable:
        image, height, width = _image(args, self.num_channels)
        if height % self.patch_size or width % self.patch_size:
            raise RequestError(
                f"an image of {height} x {width} pixels is no whole number of patches of {self.patch_size}: "
                "resize or crop it"
            )
        return image.device

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        images = [image for (image,) in calls]
        runs = [list(run) for _, run in groupby(images, key=lambda image: image.shape)]
        pixels_TP = torch.cat([self._patches(run) for run in runs])
        shapes = [[side // self.patch_size for side in image.shape[:2]] for image in images]
        lengths = [height * width for height, width in shapes]
        starts_B1 = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        spans = (sent(torch.tensor(shapes), self.device), sent(starts_B1, self.device))
        return [pixels_TP, *spans, max(lengths)]

    def _patches(self, images: Sequence[Tensor]) -> Tensor:
        """[N * patches, P]"""
        size = self.patch_size
        pixels = sent(together(images, self.device), self.device).to(self.dtype).div_(127.5).sub_(1)
        parts_NYPXQC = pixels.unflatten(2, (-1, size)).unflatten(1, (-1, size))
        return parts_NYPXQC.transpose(2, 3).reshape(-1, size * size * self.num_channels)


class Pixels:
    """Images uint8 [H, W, C] of one size, whose sides `multiple` divides and are at least `smallest`:
    pixel_values [B, H, W, C] within 0 .. 1, less the mean of each channel and over its standard deviation
    where `normalised` gives them."""

    def __init__(
        self,
        multiple: int,
        num_channels: int,
        place: Place,
        normalised: tuple[Sequence[float], Sequence[float]] | None = None,
        smallest: int = 1,
    ) -> None:
        self.multiple, self.num_channels, self.smallest = multiple, num_channels, smallest
        self.device, self.dtype = place
        if normalised is not None:
            mean_C, std_C = (torch.tensor(of_channels, device=self.device) for of_channels in normalised)
            self.scale_C, self.shift_C = 1 / (255 * std_C), -mean_C / std_C
        self.normalised = normalised is not None

    def key(self, args: tuple[Any, ...]) -> Hashable:
        image, height, width = _image(args, self.num_channels)
        if height % self.multiple or width % self.multiple:
            raise RequestError(
                f"an image of {height} x {width} pixels: sides must be multiples of {self.multiple}. "
                "Resize or pad it"
            )
        if min(height, width) < self.smallest:
            raise RequestError(
                f"an image of {height} x {width} pixels: sides must be at least {self.smallest}. "
                "Resize or pad it"
            )
        return key_of(image)

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [together([image for (image,) in calls], self.device)]

    def prepare(self, images_BHWC: Tensor) -> list[Any]:
        if self.normalised:  # in float32, rounded once
            return [torch.addcmul(self.shift_C, images_BHWC, self.scale_C).to(self.dtype)]
        return [images_BHWC.to(self.dtype).div_(255)]


class Videos:
    """Videos [F, H, W, C] of one size, uint8 or floats that are normalised already, beside arguments that are
    stacked. A launch gets pixel_values_videos [B, F, H, W, C], uint8 normalised as `Pixels` does, and those.

    F is a multiple of `tubelet` up to `most_frames`, or less than one; sides are those of the model.
    """

    def __init__(
        self,
        most_frames: int,
        tubelet: int,
        sides: tuple[int, int],
        num_channels: int,
        place: Place,
        normalised: tuple[Sequence[float], Sequence[float]],
    ) -> None:
        self.most_frames, self.tubelet = most_frames, tubelet
        self.form = (*sides, num_channels)
        self.device, self.dtype = place
        self._pixels = Pixels(1, num_channels, place, normalised)

    def key(self, args: tuple[Any, ...]) -> Hashable:
        video = args[0]
        if isinstance(video, Tensor):
            require_values("a video", video)
        is_kind = isinstance(video, Tensor) and (video.dtype == torch.uint8 or video.is_floating_point())
        if not is_kind or video.dim() != 4:
            raise RequestError(
                "a video must be a tensor or array [frames, height, width, channels], uint8 or floats that "
                f"are normalised, not {described(video)}"
            )
        frames, *form = video.shape
        if tuple(form) != self.form:
            wanted = "height {}, width {}, {} channels".format(*self.form)
            raise RequestError(f"a video of frames {form}: the model takes {wanted}. Resize and crop it")
        if not 1 <= frames <= self.most_frames or (frames > self.tubelet and frames % self.tubelet):
            raise RequestError(
                f"a video of {frames} frames: the model takes up to {self.tubelet}, or a multiple of "
                f"{self.tubelet} up to {self.most_frames}. Sample others"
            )
        return key_of(args)

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [stack(column, self.device) for column in zip(*calls)]

    def prepare(self, videos: Tensor, *others: Any) -> list[Any]:
        is_raw = videos.dtype == torch.uint8
        return [*(self._pixels.prepare(videos) if is_raw else [videos.to(self.dtype)]), *others]


def _image(args: tuple[Any, ...], num_channels: int) -> tuple[Tensor, int, int]:
    """The image, its height and width; a RequestError refuses what is none."""
    (image,) = args
    if isinstance(image, Tensor):
        require_values("an image", image)
    if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.dim() != 3:
        raise RequestError(
            f"an image must be a uint8 tensor or array [height, width, channels], or an RGB image of PIL, "
            f"not {described(image)}{_advice(image)}"
        )
    height, width, channels = image.shape
    if not height or not width:
        raise RequestError(f"an image of {height} x {width} pixels is empty")
    if height * width > MOST_PIXELS:
        raise RequestError(
            f"an image of {height} x {width} pixels: they are at most {MOST_PIXELS} (4096 x 4096). Resize it"
        )
    if channels != num_channels:
        are_first = image.shape[0] == num_channels
        advice = "Put them last (permute)" if are_first else "Convert it (grey, alpha)"
        raise RequestError(f"an image has {channels} channels, the model takes {num_channels}. {advice}")
    return image, height, width


def _advice(image: Any) -> str:
    """What helps with a tensor or array that is nearly an image."""
    if not isinstance(image, (Tensor, np.ndarray)):
        return ""
    if len(image.shape) == 2:
        return ". Repeat grey for every channel"
    if len(image.shape) == 4:
        return ". Give the images of a batch one by one"
    return ". Scale its values to 0 .. 255 and convert it" if len(image.shape) == 3 else ""


def require_values(what: str, tensor: Tensor) -> None:
    """RequestError for a tensor that is no plain array in memory: operations on it fail in the middle of a
    launch, and others' requests with it."""
    if tensor.is_nested or tensor.is_quantized or tensor.is_meta or tensor.layout != torch.strided:
        kinds = {"nested": tensor.is_nested, "quantized": tensor.is_quantized, "meta": tensor.is_meta}
        layout = str(tensor.layout).removeprefix("torch.")
        kind = next((kind for kind, is_it in kinds.items() if is_it), layout)
        raise RequestError(f"{what} is a {kind} tensor: the model takes dense ones")


def require_places(name: str, ids: Any, tokens: int) -> None:
    """RequestError unless they are places of a request's tokens."""
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1 or not len(ids):
        raise RequestError(f"{name} must be int64 [n], at least one place, not {described(ids)}")
    low, high = (int(end) for end in ids.aminmax())
    if low < 0 or high >= tokens:
        wrong = low if low < 0 else high
        raise RequestError(f"{name} has place {wrong}: the tokens are 0 .. {tokens - 1}")


def described(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device; from pinned memory, so that the host goes on."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Crossing:
    """Tensors of the host that cross to the device in one copy, because they lie in one buffer. forms: their
    shapes and dtypes. Among the arguments of a launch it stands for all of them, in order."""

    def __init__(self, device: torch.device, *forms: tuple[tuple[int, ...], torch.dtype]) -> None:
        self.forms, self.spans, size = forms, list[tuple[int, int]](), 0
        for shape, dtype in forms:
            end = size + math.prod(shape) * dtype.itemsize
            self.spans.append((size, end))
            size = -(-end // ALIGNED) * ALIGNED
        self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")

    def arrays(self) -> list[np.ndarray]:
        """To be filled; bfloat16 as words."""
        memory = self.buffer.numpy()
        return [
            np.ndarray(shape, _WORDS[dtype], memory, begin)
            for (shape, dtype), (begin, _) in zip(self.forms, self.spans)
        ]

    def tensors(self, buffer: Tensor | None = None) -> list[Tensor]:
        """Views of the buffer, or of a copy of it."""
        memory = self.buffer if buffer is None else buffer
        return [
            memory[begin:end].view(dtype).view(shape)
            for (shape, dtype), (begin, end) in zip(self.forms, self.spans)
        ]


_WORDS = {
    torch.int32: np.int32,
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: np.int16,
}


def words_of(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    """Floats on the host in this dtype, as a Crossing has them."""
    tensor = tensor.detach().to("cpu", dtype).resolve_neg()
    return (tensor.view(torch.int16) if dtype == torch.bfloat16 else tensor).numpy()


def ids_of(tensor: Tensor) -> np.ndarray:
    """Integers on the host, int64, contiguous."""
    if tensor.is_cuda or tensor.dtype != torch.int64:
        tensor = tensor.to("cpu", torch.int64)
    return tensor.contiguous().numpy()


def largest_unsigned(ids: np.ndarray) -> int:
    """Of int64 [n], n > 0. A negative id is a large one without its sign: one pass finds both."""
    return int(ids.view(np.uint64).max())


def together(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Tensors of one shape, stacked. Those of the host stay there unless they are more than a run: then the
    device fetches a run of them while the next is copied."""
    first = tensors[0]
    if device.type != "cuda" or first.is_cuda:
        return torch.stack(list(tensors)).to(device)
    shape = (len(tensors), *first.shape)
    pinned = torch.empty(shape, dtype=first.dtype, pin_memory=True)
    if pinned.nbytes <= RUN_BYTES:
        return torch.stack(list(tensors), out=pinned)
    stacked = torch.empty(shape, dtype=first.dtype, device=device)
    # Handed out again only when all copies are done: torch counts those of a view for its whole storage.
    length = max(1, RUN_BYTES // first.nbytes)
    for start in range(0, len(tensors), length):
        run = slice(start, start + length)
        torch.stack(list(tensors[run]), out=pinned[run])
        stacked[run].copy_(pinned[run], non_blocking=True)
    return stacked


def key_of(value: Any, by_device: bool = True) -> Hashable:
    """The shapes, dtypes and devices of tensors, and everything else as it is: the signature of arguments."""
    if isinstance(value, Tensor):
        return (value.shape, value.dtype, value.device if by_device else None)
    if isinstance(value, Crossing):
        return value.forms
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(key_of(part, by_device) for part in value))
    return value


def stack(values: Sequence[Any], device: torch.device | None = None) -> Any:
    """One argument for a batch: tensors stacked, lists element by element, others (all equal) as they are."""
    first = values[0]
    if isinstance(first, Tensor):
        return together(values, device or first.device)
    if isinstance(first, (list, tuple)):
        return [stack(parts, device) for parts in zip(*values)]
    return first


def take(result: Any, index: int) -> Any:
    """One call's share of a batch's result."""
    if isinstance(result, dict):
        return {name: take(part, index) for name, part in result.items()}
    return [take(part, index) for part in result] if isinstance(result, (list, tuple)) else result[index]
