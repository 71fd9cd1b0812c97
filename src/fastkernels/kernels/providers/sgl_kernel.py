"""SGLang's CUDA operators on rows: rms_norm, glu, rope, topk_softmax, moe_sum. sgl_attention.py has the rest.

They are called as operators: its functions hand norms to FlashInfer where that is installed. topk_softmax
chooses by probability: of experts whose probability is zero in float32 it may take another than the
likeliest, and of a row with NaN the same one twice.

Not here: fused_add_rmsnorm normalises the sum before it is rounded. moe_align_block_size leaves the order of
an expert's tokens to chance. moe_sum adds up in 16 bits; moe_sum_reduce stands for it.
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


def _not_routed(
    logits_TE: Tensor, top_k: int, renormalize: bool, logit_scale: float = 1.0, expert_scale_E: Any = None
) -> str | None:
    if logit_scale != 1 or expert_scale_E is not None:
        return "scales neither logits nor experts"
    if not logits_TE.is_contiguous():
        return "needs a contiguous tensor"
    return checks.not_float32_compute(logits_TE) or checks.not_aligned(logits_TE)


_LIMITS = {
    "rms_norm": _not_normalised,
    "glu": _not_gated,
    "rope": _not_rotated,
    "topk_softmax": _not_routed,
    "moe_sum": _not_added,
}


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


def topk_softmax(
    logits_TE: Tensor, top_k: int, renormalize: bool, logit_scale: float = 1.0, expert_scale_E: None = None
) -> tuple[Tensor, Tensor]:
    weights_TK = logits_TE.new_empty((len(logits_TE), top_k), dtype=torch.float32)
    ids_TK = weights_TK.new_empty(weights_TK.shape, dtype=torch.int32)
    if len(logits_TE):
        route = torch.ops.sgl_kernel.topk_softmax.default
        route(weights_TK, ids_TK, logits_TE, renormalize, 0.0, None)  # no cap on logits, no bias
    return weights_TK, ids_TK


def moe_sum(x_TKD: Tensor) -> Tensor:
    out_TD = x_TKD.new_empty((x_TKD.shape[0], x_TKD.shape[2]))
    if out_TD.numel():
        torch.ops.sgl_kernel.moe_sum_reduce.default(x_TKD, out_TD, 1.0)
    return out_TD


def _overlaps(x: Tensor) -> bool:
    """Whether a kernel may be launched before the one ahead of it ends, as the library has it on Hopper."""
    return torch.cuda.get_device_capability(x.device) >= (9, 0)
