"""chunk_gla by dense products over chunks: all rows of a step padded to the longest, a few operators a chunk.

The exponents are sums of the gates between two tokens of a chunk, as in the Triton kernel: never positive.
Where a head's channels have one gate, a chunk's pairs are a product of matrices.
Lengths are read on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.gla.reference import lost
from fastkernels.kernels.kv_cache.limits import reads_lengths_on_the_host
from fastkernels.kernels.padded_rows import padded

# Longer chunks need fewer operators but C times K exponentials for each token.
CHUNK = 16


def unsupported(kernel: str, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, *_: object) -> str | None:
    return checks.not_alike(q, k, v, *checks.given(gate)) or reads_lengths_on_the_host(q)


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
    o_THV = torch.empty_like(v_THV, dtype=q_THK.dtype, memory_format=torch.contiguous_format)
    if not len(rows_B):
        return o_THV
    # Padding has no key and no decay.
    place_BC, is_real_BC = padded(query_starts_B1)
    wide, blank = state_RHKV.dtype, ~is_real_BC[..., None, None]
    if gate_THK is None:  # one for all channels of a head
        gate_THK = torch.log1p(-lost(q_THK).to(wide))[:, None].expand(len(q_THK), -1, 1)
    q, k, v, gate = (x[place_BC].to(wide).transpose(1, 2) for x in (q_THK, k_THK, v_THV, gate_THK))
    k, gate = (x.masked_fill_(blank.transpose(1, 2), 0) for x in (k, gate))
    state_BHKV = state_RHKV[rows_B]
    parts = []
    for first in range(0, place_BC.shape[1], CHUNK):
        chunk = slice(first, first + CHUNK)
        parts.append(
            _chunk(q[:, :, chunk] * scale, k[:, :, chunk], v[:, :, chunk], gate[:, :, chunk], state_BHKV)
        )
    state_RHKV[rows_B] = state_BHKV
    o_THV[place_BC[is_real_BC]] = torch.cat(parts, 2).transpose(1, 2)[is_real_BC].to(o_THV.dtype)
    return o_THV


def _chunk(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, state_BHKV: Tensor) -> Tensor:
    """Output [B, H, C, V] of one chunk [B, H, C, K]; advances the state in place."""
    sums = gate.cumsum(2)
    later = torch.ones(gate.shape[2], gate.shape[2], dtype=torch.bool, device=gate.device).triu(1)
    between = (sums[:, :, :, None] - sums[:, :, None]).masked_fill_(later[:, :, None], -torch.inf)
    if gate.shape[-1] == 1:
        weights_BHCC = (q @ k.transpose(-1, -2)).mul_(between.exp_().squeeze(-1))
    else:
        weights_BHCC = torch.einsum("bhik,bhjk,bhijk->bhij", q, k, between.exp_())
    o_BHCV = torch.matmul(q * sums.exp(), state_BHKV) + torch.matmul(weights_BHCC, v)
    kept = k * (sums[:, :, -1:] - sums).exp()
    state_BHKV.mul_(sums[:, :, -1].exp()[..., None]).add_(kept.transpose(-1, -2) @ v)
    return o_BHCV
