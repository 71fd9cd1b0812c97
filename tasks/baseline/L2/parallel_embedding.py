"""Token embedding and language-model head.

    h[t] = E[ids[t]]                     VocabParallelEmbedding
    logits = float32(h W^T)              ParallelLMHead; W may be E itself (tied weights)

T tokens, D hidden, V vocabulary. Embedding rows are copied exactly. The head multiplies in the dtype of h,
accumulates in at least float32 and returns float32 (float64 for float64 inputs) for sampling: what it has
summed, not rounded; rounded to the dtype of h only where the product is a module that rounds (`linear`, in
place of the kernel that does not).

On several ranks (nn/partition) both are split by vocabulary: a rank has a share of the ids. An embedding is
the sum over the ranks, of which all but one have zeros for an id; the head returns the logits of the rank's
ids, [T, V / ranks]: who samples compares the ranks' best (engine).
Mirrors vllm.model_executor.layers.vocab_parallel_embedding.VocabParallelEmbedding and ParallelLMHead (with
the matrix product of vllm.model_executor.layers.logits_processor.LogitsProcessor).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion
from fastkernels.nn.partition import partition, split

from ..L1.all_reduce import AllReduce
from ..L1.embedding import Embedding
from ..L1.linear import Linear


class VocabParallelEmbedding(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.mine = partition().share(num_embeddings, "ids of the vocabulary")
        self.embedding = Embedding(len(self.mine), embedding_dim)
        split(self.embedding.weight, 0, num_embeddings, [self.mine])
        self.all_reduce = AllReduce() if partition().is_split else None

    def forward(self, input_: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        if self.all_reduce is None:
            return self.embedding(input_)
        ids_T = input_ - self.mine.start
        is_mine_T = (ids_T >= 0) & (ids_T < len(self.mine))
        rows_TD = self.embedding(torch.where(is_mine_T, ids_T, 0))
        return self.all_reduce(rows_TD * is_mine_T[:, None])


class ParallelLMHead(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int, bias: bool = False) -> None:
        super().__init__()
        mine = partition().share(num_embeddings, "ids of the vocabulary")
        self.linear = Linear(embedding_dim, len(mine), bias)
        split(self.linear.weight, 0, num_embeddings, [mine])
        split(self.linear.bias, 0, num_embeddings, [mine])
        self.fuses = Fusion(self, "linear")

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        if self.fuses and not hidden_states.is_meta:
            return kernels.linear_float32(hidden_states, self.linear.weight, self.linear.bias)
        logits_TV = self.linear(hidden_states)
        return logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
