"""ssd_scan by dense products over chunks: all rows of a step padded to the longest, a few operators a chunk.

Of a chunk, with a[i] the sum of step A up to and including token i:

    y[i] = sum_j exp(a[i] - a[j]) (C[i] B[j]) step[j] x[j] + exp(a[i]) S C[i] + D x[i]          j <= i
    S   <- exp(a[last]) S + sum_j exp(a[last] - a[j]) step[j] x[j] B[j]^T

Sums are float64, so that the difference of two large ones has all digits of a small step. Lengths are read on
the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.kv_cache.limits import reads_lengths_on_the_host
from fastkernels.kernels.padded_rows import padded
from fastkernels.kernels.ssd_scan.reference import widened

CHUNK = 64


def unsupported(kernel: str, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, *_: object) -> str | None:
    return checks.not_alike(x, dt, b, c) or reads_lengths_on_the_host(x)


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
    x, step, b, c = widened(state_RHPN.dtype, x_THP, dt_TH, B_TGN, C_TGN, dt_bias_H)
    y_THP = torch.empty_like(x, memory_format=torch.contiguous_format)
    if len(rows_B):
        place_BL, is_real_BL = padded(query_starts_B1)
        # A step of length zero neither decays a state nor adds to it.
        step_BHL = step[place_BL].masked_fill_(~is_real_BL[..., None], 0).transpose(1, 2)
        x_BHLP, b_BHLN, c_BHLN = (t[place_BL].transpose(1, 2) for t in (x, b, c))
        state_BHPN, a_H = state_RHPN[rows_B], -A_log_H.exp()
        parts = []
        for first in range(0, place_BL.shape[1], CHUNK):
            chunk = slice(first, first + CHUNK)
            given = (t[:, :, chunk] for t in (step_BHL, x_BHLP, b_BHLN, c_BHLN))
            parts.append(_chunk(a_H, state_BHPN, *given))
        state_RHPN[rows_B] = state_BHPN
        y_THP[place_BL[is_real_BL]] = torch.cat(parts, 2).transpose(1, 2)[is_real_BL]
    return y_THP.addcmul_(D_H.to(x.dtype)[:, None], x).to(x_THP.dtype)


def _chunk(a_H: Tensor, state_BHPN: Tensor, step: Tensor, x: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Output [B, H, C, P] of one chunk; advances the states in place."""
    sums_BHC = (step * a_H[:, None]).double().cumsum(-1)
    between_BHCC = (sums_BHC[..., None] - sums_BHC[..., None, :]).to(x.dtype)
    later_CC = torch.ones(2 * [step.shape[-1]], dtype=torch.bool, device=x.device).triu_(1)
    weights_BHCC = between_BHCC.masked_fill_(later_CC, -torch.inf).exp_().mul_(c @ b.transpose(-1, -2))
    fed_BHCP = step[..., None] * x
    y_BHCP = weights_BHCC @ fed_BHCP
    y_BHCP += sums_BHC.exp().to(x.dtype)[..., None] * (c @ state_BHPN.transpose(-1, -2))
    last_BH1 = sums_BHC[..., -1:]
    kept_BHCP = (last_BH1 - sums_BHC).exp().to(x.dtype)[..., None] * fed_BHCP
    state_BHPN.mul_(last_BH1.exp().to(x.dtype)[..., None]).add_(kept_BHCP.transpose(-1, -2) @ b)
    return y_BHCP
