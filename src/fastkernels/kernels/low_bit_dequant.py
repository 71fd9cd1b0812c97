"""Weights of four bits with shared exponents (MXFP4) as floating-point numbers.

    w[n, 32 g + 2 i]     = E2M1[blocks[n, g, i] mod 16] 2^(scales[n, g] - 127)
    w[n, 32 g + 2 i + 1] = E2M1[blocks[n, g, i] div 16] 2^(scales[n, g] - 127)

N rows · G groups of 32 elements that share a scale · 16 bytes of a group, two codes each, the low one first.
E2M1 has 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, from code 8 on, their negatives. A scale is an exponent (E8M0).
Results are exact wherever the dtype can hold them.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel

GROUP = 32  # elements of a scale
GROUP_BYTES = GROUP // 2
BIAS = 127  # of a scale: the exponent that is 1
_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PAIR = {torch.bfloat16: torch.int32, torch.float32: torch.int64}  # as wide as two of them
E2M1 = (*_HALF, *(-value for value in _HALF))


def _reference(blocks_NGB: Tensor, scales_NG: Tensor, dtype: torch.dtype) -> Tensor:
    """By powers of two in float64, which holds every product of a code and a scale."""
    codes = torch.tensor(E2M1, dtype=torch.float64, device=blocks_NGB.device)
    pairs = torch.stack((blocks_NGB & 15, blocks_NGB >> 4), -1).flatten(-2)
    exponents_NG1 = scales_NG.to(torch.float64)[..., None] - BIAS
    return (codes[pairs.int()] * torch.exp2(exponents_NG1)).flatten(-2).to(dtype)


def _torch(blocks_NGB: Tensor, scales_NG: Tensor, dtype: torch.dtype) -> Tensor:
    """Both codes of a byte from one table, in the dtype of the result."""
    of_bytes, of_scales = _tables(dtype, blocks_NGB.device)
    w_NGB = of_bytes.index_select(0, blocks_NGB.flatten().int()).view(blocks_NGB.shape)
    scales_NG1 = of_scales.index_select(0, scales_NG.flatten().int()).view(*scales_NG.shape, 1)
    return (w_NGB.view(dtype) * scales_NG1).flatten(-2)


@lru_cache
def _tables(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each byte its two numbers as the bits of an integer, and for each scale its number."""
    with torch.inference_mode(False):
        codes, byte = torch.tensor(E2M1, dtype=dtype), torch.arange(256)
        pairs = torch.stack((codes[byte & 15], codes[byte >> 4]), -1)
        scales = torch.exp2(byte.double() - BIAS).to(dtype)
        return pairs.view(_PAIR[dtype]).flatten().to(device), scales.to(device)


def _torch_unsupported(blocks_NGB: Tensor, scales_NG: Tensor, dtype: torch.dtype) -> str | None:
    return (
        None
        if dtype in _PAIR
        else f"expands to bfloat16 and float32, not {str(dtype).removeprefix('torch.')}"
    )


_low_bit_dequant = Kernel(
    "low_bit_dequant",
    "(Tensor blocks, Tensor scales, ScalarType dtype) -> Tensor",
    _reference,
    fake=lambda blocks, scales, dtype: blocks.new_empty(
        (*scales.shape[:-1], scales.shape[-1] * GROUP), dtype=dtype
    ),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
    ),
)


def low_bit_dequant(
    blocks_NGB: Tensor, scales_NG: Tensor, dtype: torch.dtype, *, impl: str | None = None
) -> Tensor:
    """[..., 32 G] in `dtype`, contiguous, of blocks [..., G, 16] and scales [..., G], both uint8.

    Raises KernelError when `impl` cannot serve the call, ValueError for blocks of another size.
    """
    require_groups(blocks_NGB, scales_NG)
    return _low_bit_dequant(blocks_NGB, scales_NG, dtype, impl=impl)


def require_groups(blocks_NGB: Tensor, scales_NG: Tensor) -> None:
    """ValueError unless these are codes in groups of 32 with a scale for each."""
    if blocks_NGB.shape[-1] != GROUP_BYTES or blocks_NGB.shape[:-1] != scales_NG.shape:
        raise ValueError(
            f"MXFP4 has a scale for every {GROUP} elements, {GROUP_BYTES} bytes: blocks "
            f"{list(blocks_NGB.shape)} and scales {list(scales_NG.shape)} do not fit that"
        )
    for name, tensor in (("blocks", blocks_NGB), ("scales", scales_NG)):
        if tensor.dtype != torch.uint8:
            raise ValueError(f"{name} must be uint8, not {str(tensor.dtype).removeprefix('torch.')}")
