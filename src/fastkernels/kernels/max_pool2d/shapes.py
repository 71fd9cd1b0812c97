"""What pooling leaves of a map."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.conv2d.shapes import extent


def pooled_shape(x_BYXC: Tensor, window: int, stride: int, padding: int) -> tuple[int, int, int, int]:
    batch, rows, columns, channels = x_BYXC.shape
    return (batch, extent(rows, window, stride, padding), extent(columns, window, stride, padding), channels)
