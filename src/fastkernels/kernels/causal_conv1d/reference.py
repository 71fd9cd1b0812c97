"""causal_conv1d and causal_conv1d_update in plain PyTorch, in the dtype of the state: what it holds is put in
front of a row's tokens, then there is one product for each tap.
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
    total_TC = torch.zeros((), dtype=inputs.dtype, device=device)
    for j, weight_C in enumerate(weight_CK.to(inputs.dtype).unbind(1)):
        total_TC = total_TC + inputs[at_T - past + j] * weight_C
    state_RPC[rows_B] = inputs[(begin_B + lens_B)[:, None] + past_P]
    return _activated(total_TC, bias_C).to(x_TC.dtype)


def causal_conv1d_update(
    x_BC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, state_RPC: Tensor, rows_B: Tensor
) -> Tensor:
    inputs_BKC = torch.cat((state_RPC[rows_B], x_BC[:, None].to(state_RPC.dtype)), 1)
    state_RPC[rows_B] = inputs_BKC[:, 1:]
    total_BC = (inputs_BKC * weight_CK.T.to(inputs_BKC.dtype)).sum(1)
    return _activated(total_BC, bias_C).to(x_BC.dtype)


def _activated(total: Tensor, bias_C: Tensor | None) -> Tensor:
    return silu(total if bias_C is None else total + bias_C.to(total.dtype))
