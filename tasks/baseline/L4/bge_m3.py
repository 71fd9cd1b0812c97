"""BGE-M3: token ids of texts to three kinds of embeddings, for dense, lexical and late-interaction retrieval.

    h = embed(ids, positions);  h = layer_i(h) for each i
    dense[b] = h[first of b] / |h[first of b]|
    sparse[t] = relu(h[t] . w + b)
    colbert[t] = (W h[t] + b) / |W h[t] + b|          but of a text's first token

T tokens of B texts, packed one behind the other, D hidden. A layer norms behind each of its sums, and attends
in both directions. Positions count from the id of padding + 1, as in RoBERTa. The encoder has the dtype of
the module; the heads multiply in at least float32, and their outputs are float32. `config` is the complete
Hugging Face configuration of XLMRobertaModel.
Mirrors vllm.model_executor.models.roberta.BgeM3EmbeddingModel, and FlagEmbedding's
EncoderOnlyEmbedderM3ModelForInference on texts without padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.precision import at_least_float32
from fastkernels.nn.program import Call, Place, Program, Stage
from fastkernels.nn.sequences import Sequences
from fastkernels.nn.text_config import bert_arguments, bert_weights
from fastkernels.nn.weight_map import WeightMap

from ..L1.activation import ReLU
from ..L1.l2_norm import L2Norm
from ..L1.linear import Linear
from ..L2.summed_embedding import SummedEmbedding
from ..L3.encoder_layer import PostNormEncoderLayer

MOST_TEXTS = 32  # of one launch: of the longest ones 262,144 tokens


class BgeM3EmbeddingModel(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        embedding, layer, num_layers = bert_arguments(reader)
        hidden_size = layer["hidden_size"]
        self.vocab_size = embedding["vocab_size"]
        self.first_position = reader.integer("pad_token_id", minimum=0) + 1
        self.max_length = embedding["max_position_embeddings"] - self.first_position
        if self.max_length < 1:
            places = embedding["max_position_embeddings"]
            raise reader.error(
                "max_position_embeddings", f"{places} leaves no position behind that of padding"
            )

        self.embeddings = SummedEmbedding(**embedding)
        self.layers = nn.ModuleList(PostNormEncoderLayer(**layer) for _ in range(num_layers))
        with at_least_float32():
            self.sparse_linear = Linear(hidden_size, 1, bias=True)
            self.colbert_linear = Linear(hidden_size, hidden_size, bias=True)
        self.relu = ReLU()
        self.l2_norm = L2Norm()
        self.weight_map = weight_map(hidden_size)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, max_seqlen: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """input_ids and position_ids int32 [T], cu_seqlens int32 [B+1] from 0 to T, no text empty ->
        colbert [T, D], the first tokens' rows among them, dense [B, D], sparse [T]"""
        hidden_TD = self.embeddings(input_ids, position_ids)
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, cu_seqlens, max_seqlen)
        hidden_TD = hidden_TD.to(self.colbert_linear.weight.dtype)
        colbert_TD = self.l2_norm(self.colbert_linear(hidden_TD))
        dense_BD = self.l2_norm(hidden_TD[cu_seqlens[:-1]])
        return colbert_TD, dense_BD, self.relu(self.sparse_linear(hidden_TD)).squeeze(-1)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over packed texts calls."""
        ids_T, positions_T = (torch.empty(batch.num_tokens, dtype=torch.int32) for _ in range(2))
        starts_B1 = torch.empty(len(batch.seq_lens) + 1, dtype=torch.int32)
        yield run, (ids_T, positions_T, starts_B1, max(batch.seq_lens))

    def stages(self) -> dict[str, Stage]:
        packed = Sequences(
            self.vocab_size, self.max_length, self.place.device, self.first_position, (True, False, True)
        )
        return {"forward": Stage(packed, MOST_TEXTS)}

    def program(self, input_ids: Tensor) -> Program:
        """int64 [N] with the marks of beginning and end -> colbert [N - 1, D], dense [D], sparse [N]"""
        colbert_ND, dense_D, sparse_N = yield Call("forward", input_ids)
        return {"colbert": colbert_ND[1:], "dense": dense_D, "sparse": sparse_N}


def weight_map(hidden_size: int) -> WeightMap:
    """Names of the hub's file, which may stand behind `roberta.`, and the heads' under those of their
    files."""
    heads = {f"{head}.*": f"{head}.*" for head in ("sparse_linear", "colbert_linear")}
    return bert_weights(hidden_size) | WeightMap(heads, prefixes={"": "roberta."})
