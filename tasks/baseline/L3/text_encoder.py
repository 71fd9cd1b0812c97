"""Text encoders: token ids of prompts to features, of the whole prompt (clip), of each token (t5,
clip_hidden), or of both (clip_projection).

    clip    h = E[ids] + P[positions];  h = layer_i(h) for each i, causal;  y = layer_norm(h[end])
    clip_hidden        y = h  of num_layers layers
    clip_projection    y = layer_norm(h[end]) Wp^T, and h before the last layer
    t5      h = E[ids];  h = layer_i(h; bias) for each i;  y = rms_norm(h)

B prompts of S tokens, D hidden, P projected, V vocabulary, H heads. `end` is the first token with the id
end_id, or, where end_id is None, the first of the largest ids. All tokens count, those of padding too. All
layers have one bias of the scores. Parameters and activations have the dtype of the module.
Mirrors transformers.models.clip.modeling_clip.CLIPTextModel (`pooler_output`; clip_hidden: one of its
`hidden_states`), CLIPTextModelWithProjection (`hidden_states[-2]` and `text_embeds`) and
transformers.models.t5.modeling_t5.T5EncoderModel (`last_hidden_state`), without a mask.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..L1.embedding import Embedding, RelativePositionBias
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.rms_norm import RMSNorm
from ..L2.parallel_embedding import VocabParallelEmbedding
from .encoder_layer import EncoderLayer, T5Block


class CLIPTextFeatures(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_heads: int,
        max_length: int,
        hidden_act: str,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.embed_positions = Embedding(max_length, hidden_size)
        layer = (hidden_size, intermediate_size, num_heads, hidden_act, layer_norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(*layer, causal=True) for _ in range(num_layers))

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 [B, S], S at most max_length -> [B, S, D]"""
        return self.passed(self.embedded(input_ids), self.layers, input_ids).unflatten(0, input_ids.shape)

    def embedded(self, ids_BS: Tensor) -> Tensor:
        """-> [T, D]"""
        positions_S = torch.arange(ids_BS.shape[1], device=ids_BS.device)
        hidden_BSD = self.embed_tokens(ids_BS.flatten()).unflatten(0, ids_BS.shape)
        return (hidden_BSD + self.embed_positions(positions_S)).flatten(0, 1)

    def passed(self, hidden_TD: Tensor, layers: Iterable[nn.Module], ids_BS: Tensor) -> Tensor:
        """Through these layers."""
        rows = _rows(ids_BS)
        for layer in layers:
            hidden_TD = layer(hidden_TD, *rows)
        return hidden_TD


class CLIPTextModel(CLIPTextFeatures):
    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_heads: int,
        max_length: int,
        hidden_act: str,
        layer_norm_eps: float,
        end_id: int | None,
    ) -> None:
        sizes = (vocab_size, hidden_size, intermediate_size, num_layers, num_heads, max_length)
        super().__init__(*sizes, hidden_act, layer_norm_eps)
        self.end_id = end_id
        self.final_layer_norm = LayerNorm(hidden_size, layer_norm_eps)

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 [B, S], S at most max_length -> [B, D]"""
        return self.pooled(self.passed(self.embedded(input_ids), self.layers, input_ids), input_ids)

    def pooled(self, hidden_TD: Tensor, ids_BS: Tensor) -> Tensor:
        """-> [B, D]. A token's norm is its own: only those that are asked for are normalised."""
        starts_B = _rows(ids_BS)[0][:-1]
        return self.final_layer_norm(hidden_TD[starts_B + self._ends(ids_BS)])

    def _ends(self, ids_BS: Tensor) -> Tensor:
        """int64 [B]; of equal values argmax finds the first."""
        sought_BS = ids_BS if self.end_id is None else (ids_BS == self.end_id).int()
        return sought_BS.argmax(dim=-1)


class CLIPTextModelWithProjection(CLIPTextModel):
    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_heads: int,
        max_length: int,
        hidden_act: str,
        layer_norm_eps: float,
        end_id: int | None,
        projection_dim: int,
    ) -> None:
        sizes = (vocab_size, hidden_size, intermediate_size, num_layers, num_heads, max_length)
        super().__init__(*sizes, hidden_act, layer_norm_eps, end_id)
        self.text_projection = Linear(hidden_size, projection_dim)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [B, S], S at most max_length -> [B, S, D] before the last layer, and [B, P]"""
        *before, last = self.layers
        hidden_TD = self.passed(self.embedded(input_ids), before, input_ids)
        pooled_BD = self.pooled(self.passed(hidden_TD, [last], input_ids), input_ids)
        return hidden_TD.unflatten(0, input_ids.shape), self.text_projection(pooled_BD)


class T5EncoderModel(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_heads: int,
        head_size: int,
        hidden_act: str,
        eps: float,
        num_buckets: int,
        max_distance: int,
    ) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.position_bias = RelativePositionBias(num_buckets, num_heads, max_distance)
        layer = (hidden_size, intermediate_size, num_heads, head_size, hidden_act, eps)
        self.layers = nn.ModuleList(T5Block(*layer) for _ in range(num_layers))
        self.final_layer_norm = RMSNorm(hidden_size, eps)

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 [B, S] -> [B, S, D]"""
        hidden_TD = self.embed_tokens(input_ids.flatten())
        bias_HSS = self.position_bias(torch.arange(input_ids.shape[1], device=input_ids.device))
        starts_B1, length = _rows(input_ids)
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, bias_HSS, starts_B1, length)
        return self.final_layer_norm(hidden_TD).unflatten(0, input_ids.shape)


def _rows(ids_BS: Tensor) -> tuple[Tensor, int]:
    """Where each prompt begins in the packed tokens, and its length."""
    prompts, length = ids_BS.shape
    return torch.arange(prompts + 1, dtype=torch.int32, device=ids_BS.device) * length, length
