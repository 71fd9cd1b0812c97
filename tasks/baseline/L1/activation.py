"""Activations that are computed for each element on its own.

    log_sigmoid    y = log(1 / (1 + exp(-x))) / divisor

Any shape. Computed in at least float32, y has the dtype of x. The divisor of a log-space gate is the length
of its memory: the smaller the quotient, the slower it forgets.
Mirrors torch.nn.LogSigmoid.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class LogSigmoid(nn.Module):
    def __init__(self, divisor: float = 1.0) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        return kernels.log_sigmoid(x, self.divisor)
