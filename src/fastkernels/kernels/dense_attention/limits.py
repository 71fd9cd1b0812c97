"""What the flash-attention kernels can serve: flash-attn's own, and the copy of it inside PyTorch."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels import checks


def flash(q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, bias: object) -> str | None:
    if bias is not None:
        return "serves no bias"
    if (head_dim := q_THK.shape[-1]) > 256 or head_dim % 8:
        return f"serves head dimensions up to 256 that 8 divides, not {head_dim}"
    if not len(q_THK):
        return "needs at least one query"
    return checks.not_half(q_THK, k_SHK, v_SHK) or checks.not_aligned(q_THK, k_SHK, v_SHK)
