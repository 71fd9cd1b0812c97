"""The rows of a ragged batch, padded to the longest, in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def padded(query_starts_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Where the tokens of the padded rows [B, L] lie among those of the step (0 for padding), and which are
    real. Lengths are read on the host."""
    starts_B1 = query_starts_B1.long() - query_starts_B1[0]
    lens_B = starts_B1.diff()
    along_L = torch.arange(int(lens_B.max()), device=lens_B.device)
    is_real_BL = along_L < lens_B[:, None]
    return torch.where(is_real_BL, along_L + starts_B1[:-1, None], 0), is_real_BL
