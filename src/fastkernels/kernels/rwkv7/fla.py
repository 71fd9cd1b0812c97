"""chunk_rwkv7 and recurrent_rwkv7 by flash-linear-attention: states are copied out of their rows and back.

Its chunked kernels find the chunks of a ragged batch on the host.
"""

# The library's annotations are narrower than what it takes, where it is installed.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import torch
from fla.ops.rwkv7 import chunk_rwkv7 as fla_chunk  # pyright: ignore[reportMissingImports]
from fla.ops.rwkv7 import fused_mul_recurrent_rwkv7 as fla_recurrent  # pyright: ignore[reportMissingImports]
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.plans import capturing


def unsupported(kernel: str, r: Tensor, *rest: Tensor) -> str | None:
    if reason := checks.not_float32_compute(r, *rest[:5]):
        return reason
    if rest[5].dtype != torch.float32:
        return f"keeps states in float32, not {rest[5].dtype}"
    if kernel == "chunk_rwkv7" and r.dtype == torch.float32:
        return "has no chunks of float32: the library warns that some devices compute them wrongly"
    if kernel == "chunk_rwkv7" and capturing(r):
        return "finds its chunks on the host: a CUDA graph would keep these lengths"
    return None


def chunk_rwkv7(
    r_THK: Tensor,
    w_THK: Tensor,
    k_THK: Tensor,
    v_THV: Tensor,
    kk_THK: Tensor,
    a_THK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    tokens = (r_THK, w_THK, k_THK, v_THV, -kk_THK, kk_THK * a_THK)
    o_1THV, state_BHKV = fla_chunk(
        *(x.contiguous()[None] for x in tokens),
        initial_state=state_RHKV[rows_B],
        output_final_state=True,
        cu_seqlens=query_starts_B1.long() - query_starts_B1[0],
        safe_gate=True,
        lower_bound=-0.6065306597126334,
        chunk_size=64,
    )
    state_RHKV[rows_B] = state_BHKV
    return o_1THV[0]


def recurrent_rwkv7(
    r_BHK: Tensor,
    w_BHK: Tensor,
    k_BHK: Tensor,
    v_BHV: Tensor,
    kk_BHK: Tensor,
    a_BHK: Tensor,
    state_RHKV: Tensor,
    rows_B: Tensor,
) -> Tensor:
    tokens = (x.contiguous()[:, None] for x in (r_BHK, w_BHK, k_BHK, v_BHV, kk_BHK, a_BHK))
    o_B1HV, state_BHKV = fla_recurrent(*tokens, initial_state=state_RHKV[rows_B], output_final_state=True)
    state_RHKV[rows_B] = state_BHKV
    return o_B1HV[:, 0].to(r_BHK.dtype)
