"""Rows of a table.

    y[t] = W[ids[t]]

T tokens, V vocabulary, D hidden; ids int32 or int64 in [0, V). Rows are copied exactly, in the dtype of W.
Mirrors torch.nn.Embedding, the lookup inside vllm.model_executor.layers.vocab_parallel_embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class Embedding(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        return kernels.embedding(ids, self.weight)
