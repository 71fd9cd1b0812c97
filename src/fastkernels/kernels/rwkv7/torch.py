"""chunk_rwkv7 by dense products over chunks: all rows of a step padded to the longest, a few operators a
chunk (the equations are those of chunks.py).

Lengths are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.kv_cache.limits import reads_lengths_on_the_host
from fastkernels.kernels.padded_rows import padded

# Longer chunks need fewer operators, and exp of longer sums loses digits.
CHUNK = 16


def unsupported(kernel: str, r_THK: Tensor, *rest: Tensor) -> str | None:
    return checks.not_alike(r_THK, *rest[:5]) or reads_lengths_on_the_host(r_THK)


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
    o_THV = torch.empty_like(v_THV, dtype=r_THK.dtype, memory_format=torch.contiguous_format)
    if not len(rows_B):
        return o_THV
    # Padding has no key, removes nothing and has no decay.
    place_BC, is_real_BC = padded(query_starts_B1)
    blank = ~is_real_BC[:, None, :, None]
    r, w, k, v, kk, a = (
        x[place_BC].to(state_RHKV.dtype).transpose(1, 2) for x in (r_THK, w_THK, k_THK, v_THV, kk_THK, a_THK)
    )
    w, k, kk = (x.masked_fill_(blank, 0) for x in (w, k, kk))
    state_BHKV = state_RHKV[rows_B]
    parts = []
    for first in range(0, place_BC.shape[1], CHUNK):
        chunk = slice(first, first + CHUNK)
        tokens = tuple(x[:, :, chunk] for x in (r, w, k, v, kk, kk * a))
        parts.append(_chunk(state_BHKV, *tokens))
    state_RHKV[rows_B] = state_BHKV
    o_THV[place_BC[is_real_BC]] = torch.cat(parts, 2).transpose(1, 2)[is_real_BC].to(o_THV.dtype)
    return o_THV


def _chunk(
    state_BHKV: Tensor, r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, beta: Tensor
) -> Tensor:
    """Output [B, H, C, V] of one chunk [B, H, C, K]; advances the state in place."""
    sums = w.cumsum(2)
    last_BH1K = sums[:, :, -1:]
    r, alpha = r * sums.exp(), -kk * (sums - w).exp()
    k, beta = k * (-sums).exp(), beta * (-sums).exp()
    after = torch.cat((beta, k), 2).transpose(-1, -2)
    alpha_beta, alpha_k = torch.matmul(alpha, after).chunk(2, -1)
    r_beta, r_k = torch.matmul(r, after).chunk(2, -1)
    wanted = torch.matmul(alpha_k.tril(-1), v) + torch.matmul(alpha, state_BHKV)
    # (I - A) u = wanted; of the matrix only what is below the diagonal is read.
    u = torch.linalg.solve_triangular(-alpha_beta, wanted, upper=False, unitriangular=True)
    o = torch.matmul(r, state_BHKV) + torch.matmul(r_k.tril(), v) + torch.matmul(r_beta.tril(), u)
    added = torch.matmul(k.transpose(-1, -2), v) + torch.matmul(beta.transpose(-1, -2), u)
    state_BHKV.add_(added).mul_(last_BH1K.exp().transpose(-1, -2))
    return o
