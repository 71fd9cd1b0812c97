"""Sums or means of a table's rows, a bag of ids for each feature of each sample.

    y[b, f] = sum_{o[s] <= n < o[s + 1]} W[input[n]],  s = f B + b          mean: divided by o[s + 1] - o[s]

B samples, F features, N ids, V rows, D values of a row; o offsets. Bags lie feature by feature, results
sample by sample. The tables of all features are one, and an id is a row of it. A bag without ids gives zeros,
a mean too; ids behind the last offset belong to no bag. Summed in at least float32; y has the dtype of W.
Mirrors torch.nn.EmbeddingBag with include_last_offset; of several features as one lookup, FBGEMM's
table-batched embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class EmbeddingBag(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str, num_features: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim), requires_grad=False)
        self.mode, self.num_features = mode, num_features

    def forward(self, input: Tensor, offsets: Tensor) -> Tensor:
        """input int32 or int64 [N], offsets [F B + 1] -> [B, F, D]"""
        return kernels.embedding_bag(input, offsets, self.weight, self.num_features, self.mode)
