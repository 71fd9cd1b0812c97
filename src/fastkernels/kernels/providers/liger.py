"""Liger-Kernel's Triton kernels: the norms, rope, softmax and activations with which it patches transformers.

A gated linear unit of 16 bits rounds the activation before its product with the other half: twice, where the
others round once. Its group_norm is not here: it takes the variance as mean(x^2) - mean(x)^2 in float32,
which loses a group whose mean is large beside its deviation, and nothing in the arguments shows that one is.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward
from liger_kernel.ops.geglu import geglu_forward
from liger_kernel.ops.layer_norm import layer_norm_forward
from liger_kernel.ops.relu_squared import relu_squared_forward
from liger_kernel.ops.rms_norm import rms_norm_forward
from liger_kernel.ops.rope import rope_forward
from liger_kernel.ops.softmax import LigerSoftmaxFunction
from liger_kernel.ops.swiglu import swiglu_forward
from torch import Tensor

from fastkernels.kernels import checks

WIDEST = 65536  # elements of a row, which one program holds
_IN_FLOAT32 = "gemma"  # its name for norms that round once, at the end


def unsupported(kernel: str, x: Tensor, *rest: Any) -> str | None:
    tensors = [t for t in rest if isinstance(t, Tensor)]
    if kernel == "rope":
        return _not_rotated(x, *tensors)
    if x.shape[-1] > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {x.shape[-1]}"
    if kernel == "softmax":
        return "computes 16-bit rows in 16 bits" if x.dtype.itemsize == 2 else checks.not_float32_compute(x)
    if kernel == "glu":
        return _not_gated(x, rest[0])
    if kernel == "activation" and rest != ("relu2", 1.0):
        return "has relu2 alone, without a divisor"
    rows = (x, tensors[0]) if kernel == "add_rms_norm" else (x,)
    return checks.not_float32_compute(x, *tensors) or checks.not_rows(*rows)


def _not_rotated(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> str | None:
    if cos_sin_PR.dtype != torch.float32:
        return "multiplies in the dtype of the table: needs one of float32"
    return checks.not_float32_compute(q_THK, k_TJK)


def _not_gated(x_T2F: Tensor, activation: str) -> str | None:
    if activation not in ("silu", "gelu_tanh"):
        return f"has silu and gelu_tanh, not {activation}"
    return checks.not_float32_compute(x_T2F)


def rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    if not x_TD.numel():
        return x_TD.new_empty(x_TD.shape)
    return rms_norm_forward(x_TD, weight_D, eps, float(plus_one), _IN_FLOAT32, None)[0]


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    """It normalises the rounded sum, as the contract says."""
    if not x_TD.numel():
        return x_TD.new_empty(x_TD.shape), x_TD.new_empty(x_TD.shape)
    return fused_add_rms_norm_forward(x_TD, residual_TD, weight_D, eps, float(plus_one), _IN_FLOAT32)[:2]


def layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    return layer_norm_forward(x_TD, weight_D, bias_D, eps)[0] if x_TD.numel() else x_TD.new_empty(x_TD.shape)


def softmax(x_TD: Tensor) -> Tensor:
    return LigerSoftmaxFunction.apply(x_TD) if x_TD.numel() else x_TD.new_empty(x_TD.shape)


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    """It takes gates and what they multiply as two contiguous tensors, so both halves are copied."""
    gate_TF, up_TF = (half.contiguous() for half in x_T2F.chunk(2, dim=-1))
    if not gate_TF.numel():
        return gate_TF
    return (swiglu_forward if activation == "silu" else geglu_forward)(gate_TF, up_TF)[2]


def activation(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    return relu_squared_forward(x_TF) if x_TF.numel() else x_TF.new_empty(x_TF.shape)


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    """It rotates in place, by a table of the tokens in their order: of copies, by rows that are gathered."""
    q_THK, k_TJK = (x.clone(memory_format=torch.contiguous_format) for x in (q_THK, k_TJK))
    if len(positions_T):
        cos_1TR, sin_1TR = cos_sin_PR.index_select(0, positions_T)[None].chunk(2, dim=-1)
        q_1HTK, k_1JTK = q_THK[None].transpose(1, 2), k_TJK[None].transpose(1, 2)
        rope_forward(q_1HTK, k_1JTK, cos_1TR, sin_1TR, rotary_dim=cos_sin_PR.shape[-1])
    return q_THK, k_TJK
