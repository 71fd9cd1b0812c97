"""QuACK's kernels in CuTe DSL: norms, softmax, rope, matrix products.

It compiles a kernel at the first call of each width and dtype. Matrix products have the configuration that it
takes without tuning, which would compile dozens. Its products with an activation are not here: 0.6.5 refuses
them with CuTe DSL 4.8.1, which pip installs with it. Nor is its top-k, which returns weights of 16 bits, nor
its cross entropy: no kernel of ours computes losses.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from quack.gemm_interface import gemm
from quack.rmsnorm import layernorm_fwd, rmsnorm_fwd
from quack.rotary import apply_rotary
from quack.softmax import softmax_fwd
from torch import Tensor

from fastkernels.kernels import checks

HOPPER = (9, 0)
WIDEST = 262144  # elements of a row, which a cluster of thread blocks holds


def unsupported(kernel: str, x: Tensor, *rest: Any) -> str | None:
    tensors = [t for t in rest if isinstance(t, Tensor)]
    if kernel == "linear":
        return _not_multiplied(x, *rest)
    if kernel in ("rope", "rope_pairs"):
        q, k, cos_sin = tensors if kernel == "rope" else (x, *tensors)
        return _not_rotated(q, k, cos_sin)
    if kernel == "add_rms_norm" and x.dtype != torch.float32:
        return "normalises the sum of 16-bit tensors before it is rounded"
    if x.shape[-1] > WIDEST:
        return f"serves rows of up to {WIDEST} elements, not {x.shape[-1]}"
    if kernel == "softmax" and x.shape[-1] * x.element_size() % checks.VECTOR_BYTES:
        return f"needs rows of a multiple of {checks.VECTOR_BYTES} bytes"
    rows = (x, tensors[0]) if kernel == "add_rms_norm" else (x,)
    return checks.not_float32_compute(x, *tensors) or checks.not_rows(*rows) or checks.not_aligned(*rows)


def _not_rotated(q: Tensor, k: Tensor, cos_sin: Tensor) -> str | None:
    head_dim, rotated = q.shape[-1], cos_sin.shape[-1]
    if head_dim > 512 or head_dim % 8 or rotated % 8:
        return (
            f"serves heads of up to 512 features, of which it turns {rotated}, that 8 divides, not {head_dim}"
        )
    if reason := checks.not_float32_compute(q, k) or checks.not_float32_compute(cos_sin):
        return reason
    return checks.not_aligned(q, k)


def _not_multiplied(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < HOPPER:
        return "needs compute capability 9.0"
    if not x.numel():
        return "needs at least one row"
    if weight.shape[0] * weight.element_size() % checks.VECTOR_BYTES:
        return f"needs output rows of a multiple of {checks.VECTOR_BYTES} bytes"
    rows = x if x.ndim == 2 else x.contiguous()
    return checks.not_half(x, weight, *checks.given(bias)) or checks.not_aligned(rows, weight)


def rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    y_TD, *_ = rmsnorm_fwd(_rows(x_TD), weight_D, eps=eps, weight_offset=_offset(weight_D, plus_one))
    return y_TD.view(x_TD.shape)


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    x, residual, offset = _rows(x_TD), _rows(residual_TD), _offset(weight_D, plus_one)
    y_TD, sum_TD, _ = rmsnorm_fwd(x, weight_D, residual=residual, eps=eps, weight_offset=offset)
    return y_TD.view(x_TD.shape), sum_TD.view(x_TD.shape)


def layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """It takes parameters in float32, so others are converted, whose time counts."""
    return layernorm_fwd(_rows(x_TD), weight_D.float(), bias_D.float(), eps).view(x_TD.shape)


def softmax(x_TD: Tensor) -> Tensor:
    return softmax_fwd(_rows(x_TD)).view(x_TD.shape)


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    """By a table of the tokens in their order: of rows that are gathered."""
    cos, sin = cos_sin_PR.index_select(0, positions_T).chunk(2, dim=-1)
    return _rotated(q_THK[None], cos, sin, False)[0], _rotated(k_TJK[None], cos, sin, False)[0]


def rope_pairs(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin_SK.chunk(2, dim=-1)
    return _rotated(q_BSHK, cos, sin, True), _rotated(k_BSHK, cos, sin, True)


def _rotated(x_BSHK: Tensor, cos_SR: Tensor, sin_SR: Tensor, interleaved: bool) -> Tensor:
    return apply_rotary(
        x_BSHK.contiguous(), cos_SR.contiguous(), sin_SR.contiguous(), interleaved=interleaved
    )


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    y_TN = gemm(x_TK.flatten(0, -2), weight_NK.T, bias=bias_N, tuned=False)
    return y_TN.view(*x_TK.shape[:-1], weight_NK.shape[0])


def _offset(weight_D: Tensor | None, plus_one: bool) -> float:
    return float(plus_one and weight_D is not None)


def _rows(x: Tensor) -> Tensor:
    return x.view(-1, x.shape[-1])
