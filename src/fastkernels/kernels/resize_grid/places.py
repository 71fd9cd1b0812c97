"""Where the tokens of packed images lie, computed on the device: a CUDA graph may capture it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Places(NamedTuple):
    """int64 [T] each: row and column of a token in its image, and the size of that image."""

    y: Tensor
    x: Tensor
    height: Tensor
    width: Tensor


def places(sizes_B2: Tensor, num_tokens: int) -> Places:
    ends_B = sizes_B2.prod(1).cumsum(0)
    token_T = torch.arange(num_tokens, device=sizes_B2.device)
    image_T = torch.searchsorted(ends_B, token_T, right=True)
    height_T, width_T = (size_B[image_T] for size_B in sizes_B2.unbind(1))
    offset_T = token_T - (ends_B[image_T] - height_T * width_T)
    return Places(offset_T // width_T, offset_T % width_T, height_T, width_T)
