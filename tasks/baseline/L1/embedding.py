"""Rows of a table.

    y[t] = W[ids[t]]
    y[t] = embed_scale W[ids[t]]                          scaled: the factor, too, has the dtype of W
    y[h, i, j] = W[bucket(p[j] - p[i]), h]                relative_bias: of attention scores, by distance

    bucket(d) = N/2 [d > 0] + |d|                                                  where |d| < N/4
    bucket(d) = N/2 [d > 0] + min(N/2 - 1, N/4 + floor(N/4 log(4|d|/N) / log(4M/N)))         elsewhere

T tokens, V vocabulary, D hidden; ids int32 or int64 in [0, V). S tokens of a row at positions p, H heads, N
buckets, M the distance from which all are alike; i is the query, j the key. Rows are copied exactly, in the
dtype of W.
Mirrors torch.nn.Embedding, the lookup inside vllm.model_executor.layers.vocab_parallel_embedding,
transformers.models.gemma4.modeling_gemma4.Gemma4TextScaledWordEmbedding, and what
transformers.models.t5.modeling_t5.T5Attention.compute_bias does in an encoder.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from fastkernels import kernels


class Embedding(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim), requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        return kernels.embedding(input, self.weight)


class ScaledEmbedding(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int, embed_scale: float) -> None:
        super().__init__()
        self.embed_scale = embed_scale
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim), requires_grad=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        rows_TD = kernels.embedding(input_ids, self.weight)
        return rows_TD * _rounded(self.embed_scale, self.weight.dtype)


class RelativePositionBias(nn.Module):
    bounds_N: Tensor

    def __init__(self, num_buckets: int, num_heads: int, max_distance: int) -> None:
        super().__init__()
        self.embedding = Embedding(num_buckets, num_heads)
        self.ahead = num_buckets // 2  # the first bucket of keys behind the query
        bounds_N = torch.tensor(_bounds(self.ahead, max_distance))
        self.register_buffer("bounds_N", bounds_N, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """integers [S] -> [H, S, S]"""
        away_SS = positions - positions[:, None]
        bucket_SS = torch.bucketize(away_SS.abs(), self.bounds_N, right=True)
        bucket_SS = torch.where(away_SS > 0, bucket_SS + self.ahead, bucket_SS)
        bias_SSH = self.embedding(bucket_SS.flatten()).unflatten(0, bucket_SS.shape)
        return bias_SSH.permute(2, 0, 1).contiguous()


def _rounded(number: float, dtype: torch.dtype) -> float:
    return torch.tensor(number, dtype=dtype, device="cpu").item()


def _bounds(count: int, max_distance: int) -> list[int]:
    """The smallest distance of each bucket but the first. In integers: logarithms that are rounded put
    distances at a bound into the bucket below on some devices."""
    exact = count // 2
    wide = count - exact
    bounds = list(range(1, exact + 1))
    for step in range(1, wide):
        # floor(wide log(d / exact) / log(max_distance / exact)) >= step
        reaches = (
            d for d in itertools.count(exact) if (d**wide * exact**step >= max_distance**step * exact**wide)
        )
        bounds.append(next(reaches))
    return bounds
