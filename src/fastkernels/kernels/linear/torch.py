"""linear by PyTorch's operator: cuBLAS on CUDA, oneDNN or MKL on CPU; the bias is added before rounding."""

from __future__ import annotations

from torch.nn.functional import linear

__all__ = ["linear"]
