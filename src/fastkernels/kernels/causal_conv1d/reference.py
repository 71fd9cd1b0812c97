"""causal_conv1d and causal_conv1d_update in plain PyTorch: what the state holds in front of a row's tokens,
then one product for each tap. In the dtype of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def causal_conv1d(
    x_TC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    state_RPC: Tensor,
    rows_B: Tensor,
    query_starts_B1: Tensor,
    max_query_len: int,
) -> Tensor:
    num_tokens, device, past = x_TC.shape[0], x_TC.device, state_RPC.shape[1]
    lens_B = query_starts_B1.diff().long()
    row_B, past_P = torch.arange(len(lens_B), device=device), torch.arange(past, device=device)
    row_T = torch.repeat_interleave(row_B, lens_B, output_size=num_tokens)
    # Row b begins at its first token and b rows' pasts, and its own past comes first.
    begin_B = query_starts_B1[:-1].long() - query_starts_B1[0] + row_B * past
    at_T = torch.arange(num_tokens, device=device) + (row_T + 1) * past
    inputs = state_RPC.new_empty(num_tokens + len(lens_B) * past, x_TC.shape[1])
    inputs[at_T] = x_TC.to(inputs.dtype)
    inputs[begin_B[:, None] + past_P] = state_RPC[rows_B]
    taps = [inputs[at_T - past + j] for j in range(past + 1)]
    state_RPC[rows_B] = inputs[(begin_B + lens_B)[:, None] + past_P]
    return _activated(taps, weight_CK, bias_C).to(x_TC.dtype)


def causal_conv1d_update(
    x_BC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, state_RPC: Tensor, rows_B: Tensor
) -> Tensor:
    inputs_BKC = torch.cat((state_RPC[rows_B], x_BC[:, None].to(state_RPC.dtype)), 1)
    state_RPC[rows_B] = inputs_BKC[:, 1:]
    return _activated(list(inputs_BKC.unbind(1)), weight_CK, bias_C).to(x_BC.dtype)


def _activated(taps: list[Tensor], weight_CK: Tensor, bias_C: Tensor | None) -> Tensor:
    wide = taps[0].dtype
    total = torch.zeros_like(taps[0]) if bias_C is None else bias_C.to(wide).expand_as(taps[0])
    for tap, weight_C in zip(taps, weight_CK.to(wide).unbind(1), strict=True):
        total = torch.addcmul(total, tap, weight_C)
    return silu(total)
