"""chunk_delta_rule and recurrent_delta_rule by flash-linear-attention, with its gates, sigmoid and lengths in
the kernel: states are copied out of their rows and back.

Its chunked kernels find the chunks of a ragged batch on the host.
"""

# The library's annotations are narrower than what it takes, where it is installed.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from fla.ops.gated_delta_rule import (
    chunk_gated_delta_rule,  # pyright: ignore[reportMissingImports]
    fused_recurrent_gated_delta_rule,  # pyright: ignore[reportMissingImports]
)
from fla.ops.kda import chunk_kda, fused_recurrent_kda  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.plans import capturing


def unsupported(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, a_log: Tensor, bias: Tensor,
    scale: float, state: Tensor, *_: object,
) -> str | None:  # fmt: skip
    if reason := checks.not_float32_compute(q, k, v, g, b, bias):
        return reason
    if kernel == "chunk_delta_rule" and q.dtype == torch.float32:
        return "solves the chunks of float32 tokens in TF32"
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if kernel == "chunk_delta_rule" and capturing(q):
        return "finds its chunks on the host: a CUDA graph would keep these lengths"
    return None


def chunk_delta_rule(
    q_TJK: Tensor,
    k_TJK: Tensor,
    v_THV: Tensor,
    g_THG: Tensor,
    b_TH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    o_1THV, state_BHKV = (chunk_kda if g_THG.ndim == 3 else chunk_gated_delta_rule)(
        *(x.contiguous()[None] for x in (q_TJK, k_TJK, v_THV, g_THG, b_TH)),
        **_options(A_log_H, dt_bias_HG, state_RHKV[rows_B], scale),
        cu_seqlens=query_starts_B1.long() - query_starts_B1[0],
    )
    state_RHKV[rows_B] = state_BHKV
    return o_1THV[0]


def recurrent_delta_rule(
    q_BJK: Tensor,
    k_BJK: Tensor,
    v_BHV: Tensor,
    g_BHG: Tensor,
    b_BH: Tensor,
    A_log_H: Tensor,
    dt_bias_HG: Tensor,
    scale: float,
    state_RHKV: Tensor,
    rows_B: Tensor,
) -> Tensor:
    q, k, v, g, beta = (x.contiguous()[:, None] for x in (q_BJK, k_BJK, v_BHV, g_BHG, b_BH))
    o_B1HV, state_BHKV = (fused_recurrent_kda if g_BHG.ndim == 3 else fused_recurrent_gated_delta_rule)(
        q, k, v, g=g, beta=beta, **_options(A_log_H, dt_bias_HG, state_RHKV[rows_B], scale)
    )
    state_RHKV[rows_B] = state_BHKV
    return o_B1HV[:, 0].to(q_BJK.dtype)


def _options(A_log_H: Tensor, dt_bias_HG: Tensor, state_BHKV: Tensor, scale: float) -> dict[str, Any]:
    return {
        "A_log": A_log_H,
        "dt_bias": dt_bias_HG.float().flatten(),
        "scale": scale,
        "initial_state": state_BHKV,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
    }
