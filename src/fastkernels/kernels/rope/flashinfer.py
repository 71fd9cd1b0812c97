"""rope by FlashInfer, which takes a float32 table."""

from __future__ import annotations

import torch
from flashinfer.rope import apply_rope_with_cos_sin_cache  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels import checks

# Head sizes of its kernel for a given table; for others it takes a path made for quantised MLA caches.
HEAD_DIMS = (64, 128, 256, 512)


def unsupported(
    kernel: str, positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor
) -> str | None:
    if cos_sin_PR.dtype != torch.float32 or not cos_sin_PR.is_contiguous():
        return "needs a contiguous float32 table"
    if not positions_T.is_contiguous():
        return "needs contiguous positions"
    head_dim, half = q_THK.shape[-1], cos_sin_PR.shape[-1] // 2
    if head_dim not in HEAD_DIMS:
        return f"serves head sizes {', '.join(map(str, HEAD_DIMS))}, not {head_dim}"
    vector = max(checks.VECTOR_BYTES // q_THK.element_size(), head_dim // 32)
    if half % vector:
        return f"rotates multiples of {2 * vector} dimensions, not {2 * half}"
    if q_THK.stride(1) != head_dim or k_TJK.stride(1) != head_dim:
        return "needs the heads of a token next to each other"
    return checks.not_half(q_THK, k_TJK) or checks.not_aligned(q_THK, k_TJK)


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    if positions_T.numel() == 0:
        return q_THK.new_empty(q_THK.shape), k_TJK.new_empty(k_TJK.shape)
    q, k = apply_rope_with_cos_sin_cache(
        positions_T, q_THK.flatten(1), k_TJK.flatten(1), q_THK.shape[-1], cos_sin_PR, is_neox=True
    )
    return q.view(q_THK.shape), k.view(k_TJK.shape)
