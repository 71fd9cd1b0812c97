"""What implementations of paged attention can serve."""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.plans import capturing


def triton(q_THK: Tensor, k_cache: Tensor, v_cache: Tensor) -> str | None:
    """Our Triton kernels: any float up to 32 bits, head dimensions up to 512, blocks of 2^n tokens."""
    if reason := checks.not_float32_compute(q_THK, k_cache, v_cache):
        return reason
    if not q_THK.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1:
        return "needs a contiguous last dimension"
    if (head_dim := q_THK.shape[-1]) > 512:
        return f"serves head dimensions up to 512, not {head_dim}"
    if (block_size := k_cache.shape[1]) & (block_size - 1):
        return f"needs a block size that is a power of two, not {block_size}"
    return None


def library(q_THK: Tensor, k_cache: Tensor, v_cache: Tensor, head_dims: tuple[int, ...]) -> str | None:
    """Libraries with compiled kernels: 16-bit floats and a few head dimensions."""
    if q_THK.shape[-1] not in head_dims:
        return f"serves head dimensions {', '.join(map(str, head_dims))}, not {q_THK.shape[-1]}"
    return half(q_THK, k_cache, v_cache)


def flash_attn(q_THK: Tensor, k_cache: Tensor, v_cache: Tensor) -> str | None:
    """flash-attn 2: its paged kernels want blocks of whole 256-token tiles."""
    if (head_dim := q_THK.shape[-1]) > 256 or head_dim % 8:
        return f"serves head dimensions up to 256 that 8 divides, not {head_dim}"
    if (block_size := k_cache.shape[1]) % 256:
        return f"needs a block size that 256 divides, not {block_size}"
    return half(q_THK, k_cache, v_cache)


def no_sinks(sinks_H: Tensor | None) -> str | None:
    """Reason where a library's softmax would leave the sinks out."""
    return None if sinks_H is None else "has no attention sinks"


def half(q_THK: Tensor, k_cache: Tensor, v_cache: Tensor) -> str | None:
    """16-bit floats of one type with rows at multiples of 16 bytes."""
    return checks.not_half(q_THK, k_cache, v_cache) or checks.not_aligned(q_THK, k_cache, v_cache)


def reads_lengths_on_the_host(tensor: Tensor) -> str | None:
    """Reason while a CUDA graph is captured, for implementations that plan on the host."""
    if capturing(tensor):
        return "plans on the host: a CUDA graph would keep these lengths"
    return None
