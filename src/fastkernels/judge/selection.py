"""Judging chosen indices: where scores tie, another choice is as right.

    T rows · k chosen of each · E candidates for the choice, with logits s[t, e]

The j-th chosen index is right if it is in range, chosen once in its row, and its logit ties with that of the
oracle's j-th. Two logits tie if they are equal, or if a float32 softmax cannot tell them apart: by what
rounding does to exp(s - max), or because both probabilities vanish in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fastkernels.registry.schema import TaskEntry

_FLOAT32 = torch.finfo(torch.float32)
# exp rounds its argument and its result, the division once more.
_ROUNDINGS = 2
_VANISHING = math.log(_FLOAT32.smallest_normal)  # s - max below which a probability has no float32 left


def logits_of(entry: TaskEntry, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the name of each output that is chosen, the logits that it is chosen by."""
    return {output: inputs[f"arg.{argument}"] for output, argument in entry.selects.items()}


def misplaced(chosen_TK: Tensor, expected_TK: Tensor, logits_TE: Tensor) -> Tensor:
    """Mask [T, k] of the chosen indices that are wrong."""
    experts = logits_TE.shape[-1]
    chosen_TK, expected_TK = (ids.to(logits_TE.device, torch.int64) for ids in (chosen_TK, expected_TK))
    outside_TK = (chosen_TK < 0) | (chosen_TK >= experts)
    chosen_TK = torch.where(outside_TK, 0, chosen_TK)
    below_TE = logits_TE.double() - logits_TE.double().amax(-1, keepdim=True)
    ours_TK, theirs_TK = below_TE.gather(-1, chosen_TK), below_TE.gather(-1, expected_TK)
    slack_TK = _ROUNDINGS * _FLOAT32.eps * torch.maximum(ours_TK.abs(), theirs_TK.abs()).clamp_min(1)
    tied_TK = (ours_TK - theirs_TK).abs() <= slack_TK
    tied_TK |= torch.maximum(ours_TK, theirs_TK) < _VANISHING
    times_TKK = chosen_TK.unsqueeze(-1) == chosen_TK.unsqueeze(-2)
    return outside_TK | ~tied_TK | (times_TKK.sum(-1) > 1)
