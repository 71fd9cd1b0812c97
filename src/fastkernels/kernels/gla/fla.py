"""chunk_gla and recurrent_gla by flash-linear-attention: states are copied out of their rows and back.

Its chunked kernel finds the chunks of a ragged batch on the host.
"""

# The library's annotations are narrower than what it takes, where it is installed.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
from fla.ops.gla import chunk_gla as fla_chunk  # pyright: ignore[reportMissingImports]
from fla.ops.gla import fused_recurrent_gla as fla_recurrent  # pyright: ignore[reportMissingImports]
from fla.ops.retention import (
    chunk_retention,  # pyright: ignore[reportMissingImports]
    fused_recurrent_retention,  # pyright: ignore[reportMissingImports]
)
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.plans import capturing


def unsupported(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, state: Tensor, *_: object
) -> str | None:
    if reason := checks.not_float32_compute(*checks.given(q, k, v, gate)):
        return reason
    if state.dtype != torch.float32:
        return f"keeps states in float32, not {state.dtype}"
    if kernel == "chunk_gla" and capturing(q):
        return "finds its chunks on the host: a CUDA graph would keep these lengths"
    return None


def chunk_gla(
    q_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    gate_THK: Tensor | None,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    scale: float,
    max_query_len: int,
) -> Tensor:
    kernel = chunk_retention if gate_THK is None else fla_chunk
    o_1THV, state_BHKV = kernel(
        *(x.contiguous()[None] for x in checks.given(q_THK, k_THK, v_THV, gate_THK)),
        scale=scale,
        initial_state=state_RHKV[rows_B],
        output_final_state=True,
        cu_seqlens=query_starts_B1.long() - query_starts_B1[0],
    )
    state_RHKV[rows_B] = state_BHKV
    return o_1THV[0]


def recurrent_gla(
    q_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    gate_BHK: Tensor | None,
    state_RHKV: Tensor,
    rows_B: Tensor,
    scale: float,
) -> Tensor:
    kernel = fused_recurrent_retention if gate_BHK is None else fla_recurrent
    o_B1HV, state_BHKV = kernel(
        *(x.contiguous()[:, None] for x in checks.given(q_BHK, k_BHK, v_BHV, gate_BHK)),
        scale=scale,
        initial_state=state_RHKV[rows_B],
        output_final_state=True,
    )
    state_RHKV[rows_B] = state_BHKV
    return o_B1HV[:, 0].to(q_BHK.dtype)
