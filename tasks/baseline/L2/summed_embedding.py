"""What a text encoder begins with: the rows of a word, of its place and of its segment, summed and normalised.

    y[t] = layer_norm(W[ids[t]] + P[positions[t]] + S[0])

T tokens, D hidden, V vocabulary, P positions; all tokens are of the first segment. Computed in at least
float32 and rounded once, to the dtype of W, where the four parts are one kernel; else after each sum, too.
Mirrors vllm.model_executor.models.bert.BertEmbedding (also vllm's roberta.RobertaEmbedding and transformers'
BertEmbeddings), with position_ids that the caller has made.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.embedding import Embedding
from ..L1.layer_norm import LayerNorm

PARTS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "layer_norm")


class SummedEmbedding(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        max_position_embeddings: int,
        type_vocab_size: int,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.word_embeddings = Embedding(vocab_size, hidden_size)
        self.position_embeddings = Embedding(max_position_embeddings, hidden_size)
        self.token_type_embeddings = Embedding(type_vocab_size, hidden_size)
        self.layer_norm = LayerNorm(hidden_size, layer_norm_eps)
        self.fuses = Fusion(self, *PARTS)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """integers [T] each -> [T, D]"""
        words, places, segments, norm = (getattr(self, name) for name in PARTS)
        if self.fuses and not input_ids.is_meta:
            tables = (words.weight, places.weight, segments.weight[0])
            return kernels.summed_embedding(
                input_ids, position_ids, *tables, norm.weight, norm.bias, norm.eps
            )
        shared_TD = segments(torch.zeros_like(input_ids))
        return norm(words(input_ids) + shared_TD + places(position_ids))
