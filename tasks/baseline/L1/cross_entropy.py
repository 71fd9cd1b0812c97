"""The loss of each token, and the gradient of their mean by the logits.

    nll[t] = -log softmax(logits[t])[targets[t]]
    dlogits[t] = (softmax(logits[t]) - e[targets[t]]) / T         e[i]: 1 at i, elsewhere 0

T tokens, V vocabulary. Computed in at least float32, which nll keeps; dlogits has the dtype of the logits.
Mirrors liger_kernel.ops.cross_entropy.cross_entropy_forward, which writes the gradient over the logits.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class CrossEntropy(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def forward(self, _input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """logits [T, V], int64 [T] -> (nll [T], dlogits [T, V])"""
        return kernels.cross_entropy(_input, target)
