"""How sure logits are of given tokens.

    y[t] = log softmax(logits[t])[token_ids[t]]

T rows, V vocabulary. Computed in at least float32, which y has; what rounds to a probability of 1 still has
an order.
Mirrors vllm.v1.sample.sampler.Sampler.gather_logprobs (and -torch.nn.functional.cross_entropy of each row).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class TokenConfidence(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def forward(self, logits: Tensor, token_ids: Tensor) -> Tensor:
        """logits [T, V], token_ids int64 [T] -> [T] at least float32"""
        return kernels.log_confidence(logits, token_ids)
