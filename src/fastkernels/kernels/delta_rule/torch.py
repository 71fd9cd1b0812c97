"""chunk_delta_rule by dense products over chunks: all rows of a step padded to the longest, a few operators a
chunk. chunks.py has the mathematics.

Sums of logarithms are float64, so that the difference of two large ones has all digits of a small one.
Lengths are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.delta_rule.reference import widened
from fastkernels.kernels.kv_cache.limits import reads_lengths_on_the_host
from fastkernels.kernels.padded_rows import padded

# Longer chunks need fewer operators. Gates of channels need C times K exponentials for each token.
CHUNK, CHUNK_OF_CHANNELS = 64, 16


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, *_: object) -> str | None:
    return checks.not_alike(q, k, v, g, b) or reads_lengths_on_the_host(q)


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
    o_THV = torch.empty_like(v_THV, dtype=q_TJK.dtype, memory_format=torch.contiguous_format)
    if not len(rows_B):
        return o_THV
    tokens = widened(state_RHKV.dtype, q_TJK, k_TJK, v_THV, g_THG, b_TH, A_log_H, dt_bias_HG, scale)
    # Padding neither decays a state nor adds to it.
    place_BL, is_real_BL = padded(query_starts_B1)
    q, k, v, log_decay, beta = (x[place_BL].transpose(1, 2) for x in tokens)
    blank_B1L1 = ~is_real_BL[:, None, :, None]
    log_decay, beta = (x.masked_fill_(blank_B1L1, 0) for x in (log_decay, beta))
    state_BHKV = state_RHKV[rows_B]
    parts, size = [], CHUNK if log_decay.shape[-1] == 1 else CHUNK_OF_CHANNELS
    for first in range(0, place_BL.shape[1], size):
        given = (x[:, :, first : first + size] for x in (q, k, v, log_decay, beta))
        parts.append(_chunk(state_BHKV, *given))
    state_RHKV[rows_B] = state_BHKV
    o_THV[place_BL[is_real_BL]] = torch.cat(parts, 2).transpose(1, 2)[is_real_BL].to(o_THV.dtype)
    return o_THV


def _chunk(
    state_BHKV: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay_BHCG: Tensor, beta_BHC1: Tensor
) -> Tensor:
    """Output [B, H, C, V] of one chunk; advances the states in place."""
    sums = log_decay_BHCG.double().cumsum(2)
    later_CC = torch.ones(2 * [q.shape[2]], dtype=torch.bool, device=q.device).triu_(1)
    between = (sums[:, :, :, None] - sums[:, :, None]).to(q.dtype)
    between = between.masked_fill_(later_CC[..., None], -torch.inf).exp_()  # [B, H, C, C, G]
    erased_BHCC = beta_BHC1 * _pairs(k, k, between)
    # Only what is below its diagonal is read: a diagonal of ones is meant.
    known = torch.cat((v, k * sums.exp().to(k.dtype)), -1) * beta_BHC1
    solved = torch.linalg.solve_triangular(erased_BHCC, known, upper=False, unitriangular=True)
    fresh_BHCV, erase_BHCK = solved.split((v.shape[-1], k.shape[-1]), -1)
    new_BHCV = fresh_BHCV - erase_BHCK @ state_BHKV
    o_BHCV = (q * sums.exp().to(q.dtype)) @ state_BHKV + _pairs(q, k, between) @ new_BHCV
    kept_BHCK = k * (sums[:, :, -1:] - sums).exp().to(k.dtype)
    decay_BHG1 = sums[:, :, -1].exp().to(k.dtype)[..., None]
    state_BHKV.mul_(decay_BHG1).add_(kept_BHCK.transpose(-1, -2) @ new_BHCV)
    return o_BHCV


def _pairs(x_BHCK: Tensor, k_BHCK: Tensor, between_BHCCG: Tensor) -> Tensor:
    """Products of two tokens, decayed from one to the other."""
    if between_BHCCG.shape[-1] == 1:
        return (x_BHCK @ k_BHCK.transpose(-1, -2)) * between_BHCCG.squeeze(-1)
    return torch.einsum("bhik,bhjk,bhijk->bhij", x_BHCK, k_BHCK, between_BHCCG)
