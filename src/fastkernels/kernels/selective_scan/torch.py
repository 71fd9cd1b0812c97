"""selective_scan with one operator for each token: rows are padded to the longest, decays and inputs of a
chunk are computed at once, and so is what C reads of its states.

Lengths are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from fastkernels.kernels import checks
from fastkernels.kernels.kv_cache.limits import reads_lengths_on_the_host
from fastkernels.kernels.padded_rows import padded
from fastkernels.kernels.selective_scan.reference import widened

# Tokens of a chunk, of all rows together: two tensors of as many I N values, which should stay in a cache.
CHUNK = 64


def unsupported(
    kernel: str, u: Tensor, delta: Tensor, b: Tensor, c: Tensor, z: Tensor, *_: object
) -> str | None:
    return checks.not_alike(u, delta, b, c, z) or reads_lengths_on_the_host(u)


def selective_scan(
    u_TI: Tensor,
    delta_TI: Tensor,
    B_TN: Tensor,
    C_TN: Tensor,
    z_TI: Tensor,
    A_log_IN: Tensor,
    D_I: Tensor,
    delta_bias_I: Tensor,
    state_RIN: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    u, delta, b, c, z, d, bias = widened(state_RIN.dtype, u_TI, delta_TI, B_TN, C_TN, z_TI, D_I, delta_bias_I)
    steps, a_IN = softplus(delta + bias), -A_log_IN.exp()
    y_TI = torch.empty_like(u)
    if len(rows_B):
        place_BL, is_real_BL = padded(query_starts_B1)
        state_BIN = state_RIN[rows_B]
        width = max(1, CHUNK // len(rows_B))
        for first in range(0, place_BL.shape[1], width):
            chunk = slice(first, first + width)
            place, is_real = place_BL[:, chunk], is_real_BL[:, chunk]
            # A step of length zero neither decays a state nor adds to it.
            step = steps[place].masked_fill_(~is_real[..., None], 0)
            read = _chunk(step, u[place], b[place], c[place], a_IN, state_BIN)
            y_TI[place[is_real]] = read[is_real]
        state_RIN[rows_B] = state_BIN
    return ((y_TI + d * u) * silu(z)).to(u_TI.dtype)


def _chunk(step: Tensor, u: Tensor, b: Tensor, c: Tensor, a_IN: Tensor, state_BIN: Tensor) -> Tensor:
    """[B, C, I] that C reads of the states of a chunk of C tokens; advances the states in place."""
    decay_BCIN = (step[..., None] * a_IN).exp_()
    states_BCIN = (step * u)[..., None] * b[:, :, None]
    before = state_BIN
    for i in range(step.shape[1]):
        before = states_BCIN[:, i].addcmul_(decay_BCIN[:, i], before)
    state_BIN.copy_(before)
    return torch.matmul(states_BCIN, c[..., None]).squeeze(-1)
