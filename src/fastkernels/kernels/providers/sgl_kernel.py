"""SGLang's CUDA operators on rows: rms_norm, glu, rope, moe_sum. Its attention: sgl_attention.py.

They are called as operators: its functions hand norms to FlashInfer where that is installed.

Not here: fused_add_rmsnorm normalises the sum before it is rounded. topk_softmax chooses by probability,
which float32 rounds to zero for improbable experts, and repeats an expert where a logit is NaN.
moe_align_block_size leaves the order of an expert's tokens to chance. moe_sum adds up in 16 bits;
moe_sum_reduce stands for it.
"""

from __future__ import annotations

from typing import Any

import sgl_kernel  # noqa: F401  # pyright: ignore[reportMissingImports]  (registers the operators)
import torch
from torch import Tensor

from fastkernels.kernels import checks

_GATED = ("silu", "gelu", "gelu_tanh")
_BLOCK = 16  # features, of which many tokens of bfloat16 add whole blocks alone


def unsupported(kernel: str, x: Tensor, *rest: Any) -> str | None:
    return _LIMITS[kernel](x, *rest)


def _not_normalised(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> str | None:
    if weight_D is None:
        return "multiplies by a weight"
    return checks.not_half(x_TD, weight_D) or checks.not_rows(x_TD) or checks.not_aligned(x_TD, weight_D)


def _not_gated(x_T2F: Tensor, activation: str) -> str | None:
    if activation not in _GATED:
        return f"has {', '.join(_GATED)}, not {activation}"
    if not x_T2F.is_contiguous():
        return "needs a contiguous tensor"
    if x_T2F.shape[-1] // 2 * x_T2F.element_size() % checks.VECTOR_BYTES:
        return f"needs halves of a multiple of {checks.VECTOR_BYTES} bytes"
    return checks.not_half(x_T2F) or checks.not_aligned(x_T2F)


def _not_rotated(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> str | None:
    if {q_THK.dtype, k_TJK.dtype, cos_sin_PR.dtype} != {torch.float32}:
        return "multiplies in the dtype of its tensors: serves float32 alone"
    if positions_T.dtype != torch.int64 or not positions_T.is_contiguous() or not cos_sin_PR.is_contiguous():
        return "needs contiguous positions of 64 bits, and a contiguous table"
    if q_THK.shape[1] % k_TJK.shape[1]:
        return "needs as many queries for each head of keys"
    return None


def _not_added(x_TKD: Tensor) -> str | None:
    if x_TKD.shape[-1] % _BLOCK:
        return f"adds blocks of {_BLOCK} features"
    return checks.not_float32_compute(x_TKD) or checks.not_aligned(x_TKD)


_LIMITS = {"rms_norm": _not_normalised, "glu": _not_gated, "rope": _not_rotated, "moe_sum": _not_added}


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False) -> Tensor:
    """It multiplies by the weight in float32 and rounds once."""
    out_TD = x_TD.new_empty(x_TD.shape)
    if out_TD.numel():
        norm = torch.ops.sgl_kernel.gemma_rmsnorm if plus_one else torch.ops.sgl_kernel.rmsnorm
        width = x_TD.shape[-1]
        norm.default(out_TD.view(-1, width), x_TD.view(-1, width), weight_D, eps, _overlaps(x_TD))
    return out_TD


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    out_TF = x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2))
    if out_TF.numel():
        getattr(torch.ops.sgl_kernel, f"{activation}_and_mul").default(out_TF, x_T2F)
    return out_TF


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    """It rotates in place: of copies, whose time counts."""
    q_THK, k_TJK = (x.clone(memory_format=torch.contiguous_format) for x in (q_THK, k_TJK))
    if len(positions_T):
        rotate = torch.ops.sgl_kernel.rotary_embedding.default
        rotate(positions_T, q_THK, k_TJK, q_THK.shape[-1], cos_sin_PR, True)
    return q_THK, k_TJK


def moe_sum(x_TKD: Tensor) -> Tensor:
    out_TD = x_TKD.new_empty((x_TKD.shape[0], x_TKD.shape[2]))
    if out_TD.numel():
        torch.ops.sgl_kernel.moe_sum_reduce.default(x_TKD, out_TD, 1.0)
    return out_TD


def _overlaps(x: Tensor) -> bool:
    """Whether a kernel may be launched before the one ahead of it ends, as the library has it on Hopper."""
    return torch.cuda.get_device_capability(x.device) >= (9, 0)
