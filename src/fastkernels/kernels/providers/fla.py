"""flash-linear-attention's Triton kernels around its attention: norms, gates, rope and the short convolution.

Its attention lies beside ours: delta_rule/fla.py, gla/fla.py, rwkv7/fla.py, ssd_scan/fla.py. Its token shift
is not here: it rounds the difference of two tokens to their dtype before it is mixed. It tunes a kernel at
the first call of each width.
"""

# The library's annotations are narrower than what it takes, where it is installed.
# pyright: reportMissingImports=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from fla.modules.activations import sigmoid, swiglu, swish
from fla.modules.causal_conv1d import causal_conv1d as fla_conv
from fla.modules.causal_conv1d import causal_conv1d_update as fla_conv_update
from fla.modules.fused_norm_gate import rms_norm_gated
from fla.modules.l2norm import l2norm
from fla.modules.layernorm import layer_norm as fla_layer_norm
from fla.modules.layernorm import rms_norm as fla_rms_norm
from fla.modules.layernorm_gated import rmsnorm_fn
from fla.modules.rotary import rotary_embedding
from torch import Tensor
from torch.nn.functional import pad

from fastkernels.kernels import checks
from fastkernels.kernels.plans import capturing

WIDEST_BYTES = 65536  # of a row that is normalised
_ACTIVATIONS = {"silu": swish, "sigmoid": sigmoid}
_SMALLEST_LENGTH = 1e-12


def unsupported(kernel: str, x: Tensor, *rest: Any) -> str | None:
    tensors = [t for t in rest if isinstance(t, Tensor)]
    if kernel == "rope":
        return _not_rotated(*tensors)
    if kernel == "rope_pairs":
        return _not_rotated(x, *tensors)
    if kernel in ("causal_conv1d", "causal_conv1d_update"):
        return _not_convolved(kernel, x, *rest)
    if not x.numel():
        return "needs at least one row"
    if kernel == "glu":
        return checks.not_float32_compute(x) if rest[0] == "silu" else f"has silu, not {rest[0]}"
    if kernel == "activation":
        return checks.not_float32_compute(x) or _not_activated(*rest)
    if x.shape[-1] * x.element_size() > WIDEST_BYTES:
        return f"serves rows of up to {WIDEST_BYTES} bytes, not {x.shape[-1] * x.element_size()}"
    if kernel == "l2_norm":
        return checks.not_half(x) or _not_divided(*rest)
    return checks.not_float32_compute(x, *tensors) or _not_normalised(kernel, x, *rest)


def _not_rotated(q: Tensor, k: Tensor, cos_sin: Tensor) -> str | None:
    if not q.numel() or not k.numel():
        return "needs at least one token"
    if q.shape[-1] > 256:
        return f"serves heads of up to 256 features, not {q.shape[-1]}"
    return checks.not_float32_compute(q, k, cos_sin)  # a table of another dtype is refused


def _not_convolved(
    kernel: str, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, *_: Any
) -> str | None:
    if not len(x):
        return "needs at least one token"
    if kernel == "causal_conv1d" and capturing(x):
        return "finds its chunks on the host: a CUDA graph would keep these lengths"
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    return checks.not_float32_compute(x, weight, *checks.given(bias))


def _not_activated(name: str, divisor: float) -> str | None:
    if name == "log_sigmoid":
        # It takes the logarithm of 1 + e, which float32 rounds to 1 where e is small.
        return "loses the digits of a log-sigmoid that is close to zero"
    if name not in _ACTIVATIONS:
        return f"has {' and '.join(_ACTIVATIONS)}, not {name}"
    return None if divisor == 1 else "divides by no constant"


def _not_divided(keep: Tensor | None, eps: float) -> str | None:
    if keep is not None:
        return "keeps every row"
    if eps > _SMALLEST_LENGTH:
        return f"adds eps^2 under the root: serves an eps of up to {_SMALLEST_LENGTH:g}"
    return None


def _not_normalised(kernel: str, x: Tensor, *rest: Any) -> str | None:
    if kernel in ("add_rms_norm", "add_layer_norm"):
        if x.dtype != torch.float32:
            return "normalises the sum of 16-bit tensors before it is rounded"
        return "has no scale" if isinstance(rest[-1], Tensor) else None
    if kernel == "gated_rms_norm":
        _, weight, _, gate_first, *act = rest
        if "sigmoid" in act and (gate_first or weight.ndim > 1):
            return "has a sigmoid behind the norm of a whole row alone"
    return None


def _plus(weight_D: Tensor | None, plus_one: bool) -> Tensor | None:
    """Of 1 + weight all digits, as the library has no such norm."""
    return 1 + weight_D.float() if plus_one and weight_D is not None else weight_D


def rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    return fla_rms_norm(x_TD, _plus(weight_D, plus_one), None, eps=eps)


def add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    return fla_rms_norm(x_TD, _plus(weight_D, plus_one), None, residual_TD, eps, prenorm=True)


def layer_norm(x_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    return fla_layer_norm(x_TD, weight_D, bias_D, eps=eps)


def add_layer_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float, scale_D: None = None
) -> tuple[Tensor, Tensor]:
    return fla_layer_norm(x_TD, weight_D, bias_D, residual_TD, eps, prenorm=True)


def sum_layer_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    return fla_layer_norm(x_TD, weight_D, bias_D, residual_TD, eps)


def gated_rms_norm(
    x_TD: Tensor, gate_TD: Tensor, weight_D: Tensor, eps: float, gate_first: bool, act: str = "silu"
) -> Tensor:
    """Groups, and a gate before the norm, have a kernel of their own."""
    if not gate_first and weight_D.ndim == 1:
        return rms_norm_gated(x_TD, gate_TD, weight_D, None, "swish" if act == "silu" else act, eps=eps)
    x, gate = (t.flatten(-weight_D.ndim) for t in (x_TD, gate_TD))
    y = rmsnorm_fn(x, weight_D.flatten(), None, gate, eps, x_TD.shape[-1], norm_before_gate=not gate_first)
    return y.view(x_TD.shape)


def l2_norm(x_TD: Tensor, keep_T: None, eps: float) -> Tensor:
    """x / sqrt(|x|^2 + eps^2): as the contract says, but of rows hardly longer than eps."""
    return l2norm(x_TD, eps * eps)


def glu(x_T2F: Tensor, activation: str) -> Tensor:
    return swiglu(*x_T2F.chunk(2, dim=-1))


def activation(x_TF: Tensor, name: str, divisor: float) -> Tensor:
    return _ACTIVATIONS[name](x_TF)


def rope(positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor) -> tuple[Tensor, Tensor]:
    """By a table of the tokens in their order: of rows that are gathered."""
    cos, sin = cos_sin_PR.index_select(0, positions_T).chunk(2, dim=-1)
    q_1THK, k_1TJK = (rotary_embedding(x[None], cos, sin) for x in (q_THK, k_TJK))
    return q_1THK[0], k_1TJK[0]


def rope_pairs(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin_SK.chunk(2, dim=-1)
    q, k = (rotary_embedding(x, cos, sin, interleaved=True) for x in (q_BSHK, k_BSHK))
    return q, k


def causal_conv1d(
    x_TC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    state_RPC: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    """It keeps inputs in their own dtype, K of them, so that the first is never read."""
    y_1TC, state_BCK = fla_conv(
        x_TC[None], weight_CK, bias_C, initial_state=_inputs(state_RPC, rows_B), output_final_state=True,
        activation="silu", cu_seqlens=query_starts_B1.long() - query_starts_B1[0],
    )  # fmt: skip
    state_RPC[rows_B] = state_BCK[..., 1:].transpose(1, 2).to(state_RPC.dtype)
    return y_1TC[0]


def causal_conv1d_update(
    x_BC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, state_RPC: Tensor, rows_B: Tensor
) -> Tensor:
    y_BC, state_BCK = fla_conv_update(
        x_BC, _inputs(state_RPC, rows_B), weight=weight_CK, bias=bias_C, activation="silu"
    )
    state_RPC[rows_B] = state_BCK[..., 1:].transpose(1, 2)
    return y_BC


def _inputs(state_RPC: Tensor, rows_B: Tensor) -> Tensor:
    """[B, C, K]: the last inputs of each row, and a place before them."""
    return pad(state_RPC[rows_B].transpose(1, 2), (1, 0)).contiguous()
