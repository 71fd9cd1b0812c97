"""conv1d in plain PyTorch: every output frame is a product over its taps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def conv1d(x_BCF: Tensor, weight_NCK: Tensor, bias_N: Tensor | None, stride: int, padding: int) -> Tensor:
    taps_BCFK = pad(x_BCF, (padding, padding)).unfold(-1, weight_NCK.shape[-1], stride)
    y_BNF = torch.einsum("bcfk,nck->bnf", taps_BCFK, weight_NCK)
    return (y_BNF if bias_N is None else y_BNF + bias_N[:, None]).contiguous()
