"""ColBERTv2: token ids of passages or queries to a direction for each token, which late interaction compares.

    h = embed(ids, positions);  h = layer_i(h) for each i
    e[t] = W h[t] / |W h[t]|          0 for tokens that do not count in a document

T tokens of B texts, packed one behind the other, D hidden, K vector size. A layer norms behind each of its
sums, and attends in both directions; positions count from 0. The encoder has the dtype of the module; the
projection multiplies in at least float32, and e is float32. `config` is the complete Hugging Face
configuration of BertModel, with ColBERT's `dim` (128 where it is left out).
Mirrors vllm.model_executor.models.colbert.ColBERTModel, and colbert.modeling.colbert.ColBERT (`doc`, `query`)
on texts without padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.precision import at_least_float32
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.sequences import MaskedSequences
from fastkernels.nn.text_config import bert_arguments, bert_weights
from fastkernels.nn.weight_map import WeightMap

from ..L1.l2_norm import L2Norm
from ..L1.linear import Linear
from ..L2.late_interaction import PackedLateInteraction
from ..L2.summed_embedding import SummedEmbedding
from ..L3.encoder_layer import PostNormEncoderLayer

MOST_TEXTS = 1024  # of one launch
QUERY_TOKENS = 32  # that a query is filled up to


class ColBERT(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        embedding, layer, num_layers = bert_arguments(reader)
        hidden_size = layer["hidden_size"]
        self.vocab_size, self.max_length = embedding["vocab_size"], embedding["max_position_embeddings"]
        self.dim = reader.integer("dim", default=128)

        self.embeddings = SummedEmbedding(**embedding)
        self.layers = nn.ModuleList(PostNormEncoderLayer(**layer) for _ in range(num_layers))
        with at_least_float32():
            self.linear = Linear(hidden_size, self.dim)
        self.l2_norm = L2Norm()
        self.score = PackedLateInteraction()
        names = WeightMap({"linear.weight": "linear.weight"})
        self.weight_map = bert_weights(hidden_size).under("bert.") | names

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        keep: Tensor | None = None,
        attended: Tensor | None = None,
        key_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """input_ids and position_ids int32 [T], cu_seqlens int32 [B+1] from 0 to T -> [T, K]. keep bool [T]:
        rows that are not zeroed. attended int32 [N], key_cu_seqlens int32 [B+1]: the tokens that are seen.
        None: all."""
        hidden_TD = self.embeddings(input_ids, position_ids)
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, cu_seqlens, max_seqlen, attended, key_cu_seqlens)
        return self.l2_norm(self.linear(hidden_TD.to(self.linear.weight.dtype)), keep)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over packed passages calls, or the scores of documents of such lengths."""
        if run == "score":
            query_LK, docs_SK = (torch.empty(n, self.dim) for n in (QUERY_TOKENS, batch.num_tokens))
            yield run, (query_LK, docs_SK, torch.empty(len(batch.seq_lens), dtype=torch.int32))
            return
        ids_T, positions_T = (torch.empty(batch.num_tokens, dtype=torch.int32) for _ in range(2))
        starts_B1 = torch.empty(len(batch.seq_lens) + 1, dtype=torch.int32)
        yield run, (ids_T, positions_T, starts_B1, max(batch.seq_lens))

    def stages(self) -> dict[str, Stage]:
        packed = MaskedSequences(self.vocab_size, self.max_length, self.place.device)
        return {"forward": Stage(packed, MOST_TEXTS)}

    def program(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, keep: Tensor | None = None
    ) -> Program:
        """input_ids int64 [N] with all marks -> embeddings [N, K]. attention_mask, integers or bool [N]: 0
        for tokens that none sees, those that fill a query. keep, likewise: 0 for rows that come back as
        zeros, a document's punctuation."""
        return {"embeddings": (yield Call("forward", input_ids, attention_mask, keep))}
