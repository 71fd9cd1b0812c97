"""Two towers: the words of a query and the features of an item to a vector and class scores.

    u = mean E[ids];  v = W x + b;  vector = u + v;  scores = W_c vector + b_c

B pairs, S words, F features of an item, D hidden, C classes. Parameters and activations have the dtype of the
module. `config` holds vocab_size, num_features, hidden_size and num_classes.
Mirrors nothing: it shows what a new architecture needs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.weight_map import WeightMap

from ..L1.embedding import Embedding
from ..L1.linear import Linear


class TwoTower(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        hidden_size = reader.integer("hidden_size")
        self.words = Embedding(reader.integer("vocab_size"), hidden_size)
        self.item = Linear(reader.integer("num_features"), hidden_size, bias=True)
        self.head = Linear(hidden_size, reader.integer("num_classes"), bias=True)
        self.weight_map = WeightMap({})

    def forward(self, input_ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """input_ids int64 [B, S], features [B, F] -> vector [B, D], scores [B, C]"""
        ids_T = input_ids.flatten()
        words = self.words(ids_T).unflatten(0, input_ids.shape).mean(1)
        vector = words + self.item(features)
        return vector, self.head(vector)
