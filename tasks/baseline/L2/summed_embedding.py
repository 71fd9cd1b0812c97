"""What a text encoder begins with: rows of a word, of its place and of its segment, their sum normalised.

    y[t] = layer_norm(W[ids[t]] + P[positions[t]] + S[0])

T tokens, D hidden, V vocabulary, P positions; all tokens are of the first segment. Computed in at least
float32 and rounded once, to the dtype of W, where the four parts are one kernel; else after each sum, too.
Mirrors vllm.model_executor.models.bert.BertEmbedding (also vllm's roberta.RobertaEmbedding and transformers'
BertEmbeddings), with position_ids that the caller has made.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.embedding import Embedding
from ..L1.layer_norm import LayerNorm


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
        self.fuses = Fusion(self, "word_embeddings", "position_embeddings", "layer_norm")

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """integers [T] each -> [T, D]"""
        words, places, norm = self.word_embeddings, self.position_embeddings, self.layer_norm
        shared_D = self.token_type_embeddings.weight[0]
        if self.fuses and not input_ids.is_meta:
            tables = (words.weight, places.weight, shared_D)
            return kernels.summed_embedding(
                input_ids, position_ids, *tables, norm.weight, norm.bias, norm.eps
            )
        return norm(words(input_ids) + shared_D + places(position_ids))
