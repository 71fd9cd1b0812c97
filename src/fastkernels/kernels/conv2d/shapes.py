"""The extent of what a window that moves over a feature map gives; of pooling too."""

from __future__ import annotations

from torch import Tensor


def extent(length: int, window: int, stride: int, padding: int) -> int:
    """Places of a window along an axis."""
    return (length + 2 * padding - window) // stride + 1


def output_shape(
    x_BYXC: Tensor, weight_OUVI: Tensor, stride: int, padding: int, groups: int
) -> tuple[int, int, int, int]:
    batch, rows, columns, _ = x_BYXC.shape
    outputs, height, width, _ = weight_OUVI.shape
    return (batch, extent(rows, height, stride, padding), extent(columns, width, stride, padding), outputs)


def is_slice(x_BYXC: Tensor) -> bool:
    """The map is contiguous, or some neighbouring channels of one that is."""
    _, rows, columns, channels = x_BYXC.shape
    pixel = x_BYXC.stride(2)
    wanted = (rows * columns * pixel, columns * pixel, pixel, 1)
    return pixel >= channels and all(
        size == 1 or stride == want for size, stride, want in zip(x_BYXC.shape, x_BYXC.stride(), wanted)
    )


def is_depthwise(weight_OUVI: Tensor, groups: int) -> bool:
    """Every channel has one filter of its own."""
    return weight_OUVI.shape[-1] == 1 and weight_OUVI.shape[0] == groups
