"""Token embedding and language-model head, which over several ranks are split by vocabulary.

    h[t] = E[ids[t]]                     VocabParallelEmbedding
    logits = float32(h W^T)              ParallelLMHead; W may be E itself (tied weights)

T tokens, D hidden, V vocabulary. Embedding rows are copied exactly. The head multiplies in the dtype of h,
accumulates in at least float32 and returns float32 (float64 for float64 inputs) for sampling: what it has
summed, not rounded; rounded to the dtype of h only where the product is a module that rounds (`linear`, in
place of the kernel that does not).
Mirrors vllm.model_executor.layers.vocab_parallel_embedding.VocabParallelEmbedding and ParallelLMHead (with
the matrix product of vllm.model_executor.layers.logits_processor.LogitsProcessor).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.embedding import Embedding
from ..L1.linear import Linear


class VocabParallelEmbedding(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.embedding = Embedding(num_embeddings, embedding_dim)

    def forward(self, input_: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        return self.embedding(input_)


class ParallelLMHead(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = Linear(embedding_dim, num_embeddings, bias)
        self.fuses = Fusion(self, "linear")

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        if self.fuses and not hidden_states.is_meta:
            return kernels.linear_float32(hidden_states, self.linear.weight, self.linear.bias)
        logits_TV = self.linear(hidden_states)
        return logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
