"""rope by PyTorch's operators, written straight into the result: no temporaries, no concatenation."""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks


def unsupported(
    kernel: str, positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor
) -> str | None:
    if q_THK.dtype not in (torch.float32, torch.float64):
        return "would round the products of 16-bit inputs before the sum"
    if torch.is_grad_enabled() and (q_THK.requires_grad or k_TJK.requires_grad):
        return "writes into its result, which autograd cannot follow"
    return checks.not_alike(q_THK, k_TJK, cos_sin_PR)


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin_PR.index_select(0, positions_T).unsqueeze(1).chunk(2, dim=-1)
    return _rotate(q_THK, cos, sin), _rotate(k_TJK, cos, sin)


def _rotate(x_THK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    out_THK = torch.empty(x_THK.shape, dtype=x_THK.dtype, device=x_THK.device)
    first, second = x_THK[..., :half], x_THK[..., half : 2 * half]
    torch.mul(first, cos, out=out_THK[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_THK[..., half : 2 * half]).addcmul_(first, sin)
    if 2 * half < x_THK.shape[-1]:
        out_THK[..., 2 * half :] = x_THK[..., 2 * half :]
    return out_THK
