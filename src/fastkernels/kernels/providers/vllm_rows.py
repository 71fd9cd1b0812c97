"""vLLM's CUDA operators on rows: rms_norm, add_rms_norm, glu, clamped_glu.

A gated linear unit of 16 bits rounds the activation before its product with the other half: twice, where the
others round once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.providers.vllm_operator import Operator

_OPERATORS = {
    "rms_norm": Operator("_C", "rms_norm", "result input weight epsilon"),
    "add_rms_norm": Operator("_C", "fused_add_rms_norm", "input residual weight epsilon"),
    "silu": Operator("_C", "silu_and_mul", "result input"),
    "gelu": Operator("_C", "gelu_and_mul", "out input"),
    "gelu_tanh": Operator("_C", "gelu_tanh_and_mul", "out input"),
    "clamped_glu": Operator("_C", "swigluoai_and_mul", "out input alpha limit"),
}
MOST = 2**31  # elements: places are counted in 32 bits


def unsupported(kernel: str, x: Tensor, *rest: Any) -> str | None:
    if kernel == "glu" and rest[0] not in _OPERATORS:
        return f"has no {rest[0]}"
    if kernel.endswith("rms_norm") and rest[-1] is True:
        return "has no weight of 1 + w"
    if kernel == "rms_norm" and x.ndim not in (2, 3, 4):
        return f"serves 2 to 4 dimensions, not {x.ndim}"
    if kernel.endswith("glu"):
        if not x.is_contiguous():
            return "needs a contiguous tensor"
        if x.shape[-1] // 2 * x.element_size() % checks.VECTOR_BYTES:
            return f"needs halves of a multiple of {checks.VECTOR_BYTES} bytes"
    if x.numel() >= MOST:
        return f"serves fewer than 2^31 elements, not {x.numel()}"
    tensors = [x, *(t for t in rest if isinstance(t, Tensor))]
    if reason := checks.not_float32_compute(*tensors) or checks.not_aligned(*tensors):
        return reason
    return _OPERATORS[rest[0] if kernel == "glu" else kernel].missing


def rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    out_TD = x_TD.new_empty(x_TD.shape)
    if out_TD.numel():
        _OPERATORS["rms_norm"].call(out_TD, x_TD, weight_D, eps)
    return out_TD


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    """The operator writes over both tensors, so it is given copies, whose time counts."""
    out_TD, sum_TD = (x.clone(memory_format=torch.contiguous_format) for x in (x_TD, residual_TD))
    if out_TD.numel():
        _OPERATORS["add_rms_norm"].call(out_TD, sum_TD, weight_D, eps)
    return out_TD, sum_TD


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    return _halved(activation, x_T2F)


def clamped_glu(x_T2F: Tensor, alpha: float, limit: float) -> Tensor:
    return _halved("clamped_glu", x_T2F, alpha, limit)


def _halved(name: str, x_T2F: Tensor, *options: float) -> Tensor:
    out_TF = x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2))
    if out_TF.numel():
        _OPERATORS[name].call(out_TF, x_T2F, *options)
    return out_TF
