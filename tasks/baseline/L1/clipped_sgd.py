"""A step of gradient descent whose gradient is clipped by its norm.

    y = w - lr g min(1, C / n)                            n = sqrt(sum g^2), over all of the tensor

w and g [L, R, D]: of L blocks R rows each, clipped together. At least float32. Nothing is added to n.
Mirrors optax.chain(optax.clip_by_global_norm(C), optax.sgd(lr)), as torch.nn.utils.clip_grad_norm_ and
torch.optim.SGD, but for the 1e-6 that the first adds to n.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class ClippedSGD(nn.Module):
    def __init__(self, lr: float, max_norm: float) -> None:
        super().__init__()
        self.lr, self.max_norm = lr, max_norm

    def forward(self, params: Tensor, grads: Tensor) -> Tensor:
        """[L, R, D] each -> [L, R, D]"""
        return kernels.clipped_sgd(params, grads, self.lr, self.max_norm)
