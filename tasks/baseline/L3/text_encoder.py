"""Text encoders: token ids of prompts to features, of the whole prompt (clip) or of each token (t5).

    clip    h = E[ids] + P[positions];  h = layer_i(h) for each i, causal;  y = layer_norm(h[end])
    t5      h = E[ids];  h = layer_i(h; bias) for each i;  y = rms_norm(h)

B prompts of S tokens, D hidden, V vocabulary, H heads. `end` is the first token with the id end_id, or, where
end_id is None, the first of the largest ids. All tokens count, those of padding too. All layers have one bias
of the scores. Parameters and activations have the dtype of the module.
Mirrors transformers.models.clip.modeling_clip.CLIPTextModel (`pooler_output`) and
transformers.models.t5.modeling_t5.T5EncoderModel (`last_hidden_state`), without a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.embedding import Embedding, RelativePositionBias
from ..L1.layer_norm import LayerNorm
from ..L1.rms_norm import RMSNorm
from ..L2.parallel_embedding import VocabParallelEmbedding
from .encoder_layer import EncoderLayer, T5Block


class CLIPTextModel(nn.Module):
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
        super().__init__()
        self.end_id = end_id
        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.embed_positions = Embedding(max_length, hidden_size)
        layer = (hidden_size, intermediate_size, num_heads, hidden_act, layer_norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(*layer, causal=True) for _ in range(num_layers))
        self.final_layer_norm = LayerNorm(hidden_size, layer_norm_eps)

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 [B, S], S at most max_length -> [B, D]"""
        positions_S = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden_BSD = self.embed_tokens(input_ids.flatten()).unflatten(0, input_ids.shape)
        hidden_TD = (hidden_BSD + self.embed_positions(positions_S)).flatten(0, 1)
        starts_B1, length = _rows(input_ids)
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, starts_B1, length)
        # A token's norm is its own: only those that are asked for are normalised.
        return self.final_layer_norm(hidden_TD[starts_B1[:-1] + self._ends(input_ids)])

    def _ends(self, ids_BS: Tensor) -> Tensor:
        """int64 [B]; of equal values argmax finds the first."""
        sought_BS = ids_BS if self.end_id is None else (ids_BS == self.end_id).int()
        return sought_BS.argmax(dim=-1)


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
