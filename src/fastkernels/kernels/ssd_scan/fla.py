"""ssd_scan and ssd_state_update by flash-linear-attention's simple GLA, of which SSD is a case: C, B, step x
and step A are its queries, keys, values and gates. States are copied out of their rows, transposed, and back.

Its chunked kernel finds the chunks of a ragged batch on the host.
"""

# The library's annotations are narrower than what it takes, where it is installed.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
from fla.ops.simple_gla import (
    chunk_simple_gla,  # pyright: ignore[reportMissingImports]
    fused_recurrent_simple_gla,  # pyright: ignore[reportMissingImports]
)
from torch import Tensor
from torch.nn.functional import softplus

from fastkernels.kernels import checks
from fastkernels.kernels.plans import capturing


def unsupported(
    kernel: str, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a_log: Tensor, d: Tensor, bias: Tensor,
    state: Tensor, *_: object,
) -> str | None:  # fmt: skip
    if reason := checks.not_float32_compute(x, dt, b, c, d, bias):
        return reason
    if kernel == "ssd_scan" and x.dtype == torch.float32:
        return "multiplies the chunks of float32 tokens in TF32"
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if kernel == "ssd_scan" and capturing(x):
        return "finds its chunks on the host: a CUDA graph would keep these lengths"
    return None


def ssd_scan(
    x_THP: Tensor,
    dt_TH: Tensor,
    B_TGN: Tensor,
    C_TGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    given = _given(x_THP, dt_TH, B_TGN, C_TGN, A_log_H, dt_bias_H)
    y_1THP, state_BHNP = chunk_simple_gla(
        *(t[None] for t in given),
        scale=1.0,
        initial_state=state_RHPN[rows_B].transpose(-1, -2).contiguous(),
        output_final_state=True,
        cu_seqlens=query_starts_B1.long() - query_starts_B1[0],
    )
    state_RHPN[rows_B] = state_BHNP.transpose(-1, -2)
    return (y_1THP[0] + D_H[:, None].float() * x_THP).to(x_THP.dtype)


def ssd_state_update(
    x_BHP: Tensor,
    dt_BH: Tensor,
    B_BGN: Tensor,
    C_BGN: Tensor,
    A_log_H: Tensor,
    D_H: Tensor,
    dt_bias_H: Tensor,
    state_RHPN: Tensor,
    rows_B: Tensor,
) -> Tensor:
    given = _given(x_BHP, dt_BH, B_BGN, C_BGN, A_log_H, dt_bias_H)
    y_B1HP, state_BHNP = fused_recurrent_simple_gla(
        *(t[:, None] for t in given),
        scale=1.0,
        initial_state=state_RHPN[rows_B].transpose(-1, -2).contiguous(),
        output_final_state=True,
    )
    state_RHPN[rows_B] = state_BHNP.transpose(-1, -2)
    return (y_B1HP[:, 0] + D_H[:, None].float() * x_BHP).to(x_BHP.dtype)


def _given(x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a_log: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values of each head, and its gates in float32."""
    step_TH, shared = softplus(dt.float() + bias.float()), x.shape[1] // b.shape[1]
    q_THN, k_THN = (t.repeat_interleave(shared, 1) for t in (c, b))
    return q_THN, k_THN, (step_TH[..., None] * x).to(x.dtype), -step_TH * a_log.exp()
