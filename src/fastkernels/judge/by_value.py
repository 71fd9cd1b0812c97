"""Functions of single values, in float64, on tensors of which no second copy of that would fit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PIECE = 1 << 22  # elements at a time: in float64 they stay in a GPU's L2 from pass to pass
_SHORT = 2**16  # values that 16 bits have


def by_value(x: Tensor, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    """function(x) in `dtype`, contiguous. `function` is given float64, whatever x is, and looks at each value
    alone; of many values of 16 bits most are equal, so theirs are looked up."""
    found = torch.empty(x.shape, dtype=dtype, device=x.device)
    flat, pieces = x.reshape(-1), found.view(-1).split(PIECE)
    if x.element_size() != 2 or x.numel() <= _SHORT:
        for part, piece in zip(flat.split(PIECE), pieces):
            piece.copy_(function(part.double()))
        return found
    bits = torch.arange(_SHORT, dtype=torch.int32, device=x.device).to(torch.uint16)
    table = function(bits.view(x.dtype).double()).to(dtype)
    for part, piece in zip(flat.view(torch.uint16).split(PIECE), pieces):
        torch.index_select(table, 0, part.int(), out=piece)
    return found
