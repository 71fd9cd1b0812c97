"""Decoder-only language model with multi-scale retention: states in the place of keys and values.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

T tokens, D hidden, V vocabulary. Parameters and activations have the dtype of the module, states and logits
are float32. `config` is the model's Hugging Face configuration.
Mirrors fla.models.retnet.RetNetForCausalLM; `forward` returns hidden states, `compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.linear_attention_config import linear_attention_arguments, linear_attention_weights

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.linear_decoder_layer import RetentionDecoderLayer

# Defaults of the production configuration class.
EXPAND_K, EXPAND_V, HIDDEN_RATIO, MAX_POSITION = 1.0, 2.0, 2, 2048


class RetNetForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        num_layers = reader.integer("num_hidden_layers")
        self.layers = nn.ModuleList(RetentionDecoderLayer(**layer) for _ in range(num_layers))
        self.norm = RMSNorm(hidden_size, layer["norm_eps"])
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = linear_attention_weights(reader, layer)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]"""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the batch calls."""
        return language_model(self, batch)


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every layer; a UsageError names the key that is wrong or not supported."""
    config.choice("model_type", {"retnet": None})
    layer = linear_attention_arguments(config, EXPAND_K, EXPAND_V, HIDDEN_RATIO)
    if layer["key_dim"] % 2:
        raise config.error(
            "expand_k", f"gives heads of {layer['key_dim']} features: rotary positions need pairs"
        )
    max_position = config.integer("max_position_embeddings", default=MAX_POSITION)
    return {**layer, "max_position": max_position}
