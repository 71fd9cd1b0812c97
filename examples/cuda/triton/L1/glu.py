"""SiLU-gated linear unit in Triton: an honest candidate for CUDA. GeluAndMul stays the baseline's.

    y = silu(x[..., :F]) * x[..., F:]        silu(z) = z / (1 + exp(-z))

T tokens, F features; any leading shape. A program takes TILE neighbouring features of a row. Tensors that are
not on a CUDA device are served by the baseline.
"""

from __future__ import annotations

import triton
import triton.language as tl
from fastkernels.baseline.L1.glu import SiluAndMul as Baseline
from torch import Tensor

TILE = 1024


class SiluAndMul(Baseline):
    def forward(self, x: Tensor) -> Tensor:
        """[..., 2F] -> [..., F]"""
        return gated(x) if x.is_cuda else super().forward(x)


def gated(x_T2F: Tensor) -> Tensor:
    x_T2F, features = x_T2F.contiguous(), x_T2F.shape[-1] // 2
    y_TF = x_T2F.new_empty((*x_T2F.shape[:-1], features))
    rows = x_T2F.numel() // max(1, 2 * features)
    if rows:
        _gated[(rows, triton.cdiv(features, TILE))](x_T2F, y_TF, features, TILE=TILE)
    return y_TF


@triton.jit
def _gated(x, y, features, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < features
    at = x + row * 2 * features + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + features, mask=inside, other=0.0).to(tl.float32)
    silu = gate / (1.0 + tl.exp(-gate))
    tl.store(y + row * features + column, (silu * up).to(y.dtype.element_ty), mask=inside)
