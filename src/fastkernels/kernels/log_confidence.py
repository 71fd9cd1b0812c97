"""How sure a row of logits is of a token: the logarithm of its probability.

    y[t] = x[t, i] - m - log1p(sum_{v != argmax} exp(x[t, v] - m))          i = ids[t], m = max_v x[t]

T rows · V vocabulary. Float32 inside (float64 stays float64). The largest logit is not in the sum, so that
what float32 rounds to a probability of 1 still has an order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _fake(logits_TV: Tensor, ids_T: Tensor) -> Tensor:
    return logits_TV.new_empty(ids_T.shape, dtype=torch.promote_types(logits_TV.dtype, torch.float32))


def _reference(logits_TV: Tensor, ids_T: Tensor) -> Tensor:
    x_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
    top_T1, at_T1 = x_TV.max(-1, keepdim=True)
    others_T = (x_TV - top_T1).scatter(-1, at_T1, -torch.inf).exp().sum(-1)
    return (x_TV.gather(-1, ids_T[:, None]) - top_T1).squeeze(-1) - torch.log1p(others_T)


_log_confidence = Kernel(
    "log_confidence",
    "(Tensor logits, Tensor ids) -> Tensor",
    _reference,
    fake=_fake,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
    ),
    rows=lambda logits_TV, _: logits_TV.shape[0],
)


def log_confidence(logits_TV: Tensor, ids_T: Tensor, *, impl: str | None = None) -> Tensor:
    """[T] float32. ids: int64, each within 0 .. V - 1; a row has at least one finite logit. Raises
    KernelError when `impl` cannot serve the call."""
    return _log_confidence(logits_TV, ids_T, impl=impl)
