"""The loss of each row of logits, and the gradient of their mean.

    nll[t] = log sum_v exp(x[t, v]) - x[t, i]                               i = targets[t]
    dx[t, v] = (exp(x[t, v]) / sum_u exp(x[t, u]) - [v = i]) / T

T rows · V vocabulary. In float32 (float64 stays float64), which nll keeps; dx is rounded once to the dtype of
x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _fake(logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(logits_TV.dtype, torch.float32)
    return logits_TV.new_empty(targets_T.shape, dtype=dtype), logits_TV.new_empty(logits_TV.shape)


def _reference(logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    x_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    log_probability_TV = torch.log_softmax(x_TV, dim=-1)
    nll_T = -log_probability_TV.gather(-1, targets_T[:, None]).squeeze(-1)
    is_target_TV = torch.arange(x_TV.shape[-1], device=x_TV.device) == targets_T[:, None]
    # exp(y) - 1 where y is near 0: a target that is almost certain keeps its digits.
    slope_TV = torch.where(is_target_TV, log_probability_TV.expm1(), log_probability_TV.exp())
    return nll_T, (slope_TV / max(1, len(x_TV))).to(logits_TV.dtype)


def _torch(logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    """In place on one float32 copy."""
    dtype = torch.promote_types(logits_TV.dtype, torch.float32)
    y_TV, at_T1 = torch.log_softmax(logits_TV, dim=-1, dtype=dtype), targets_T[:, None]
    chosen_T1 = y_TV.gather(-1, at_T1)
    slope_TV = y_TV.exp_().scatter_(-1, at_T1, chosen_T1.expm1()).div_(max(1, len(y_TV)))
    return -chosen_T1.squeeze(-1), slope_TV.to(logits_TV.dtype)


_cross_entropy = Kernel(
    "cross_entropy",
    "(Tensor logits, Tensor targets) -> (Tensor, Tensor)",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda logits_TV, _: logits_TV.shape[0],
)


def cross_entropy(logits_TV: Tensor, targets_T: Tensor, *, impl: str | None = None) -> tuple[Tensor, Tensor]:
    """(nll [T] at least float32, dx [T, V] in the dtype of the logits). targets: int64, each within
    0 .. V - 1. Raises KernelError when `impl` cannot serve the call."""
    return _cross_entropy(logits_TV, targets_T, impl=impl)
