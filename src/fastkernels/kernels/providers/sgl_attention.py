"""Attention by SGLang's build of FlashAttention-3: over a paged cache, with sinks, and of packed rows."""

from __future__ import annotations

from typing import Any

from sgl_kernel.flash_attn import (  # pyright: ignore[reportMissingImports]
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from torch import Tensor

from fastkernels.kernels.providers import flash_attention


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    reason = flash_attention.unsupported(kernel, q, k, v, *rest)
    return reason or flash_attention.not_bfloat16(q, flash_attention.sinks(kernel, rest))


_LIBRARY = flash_attention.Version3(packed=flash_attn_varlen_func, paged=flash_attn_with_kvcache)
prefill_attention = _LIBRARY.prefill_attention
decode_attention = _LIBRARY.decode_attention
dense_attention = _LIBRARY.dense_attention
