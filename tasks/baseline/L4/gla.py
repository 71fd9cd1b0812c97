"""Decoder-only language model with gated linear attention: states in the place of keys and values.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

T tokens, D hidden, V vocabulary. Parameters and activations have the dtype of the module, states and logits
are float32. `config` is the model's Hugging Face configuration.
Mirrors fla.models.gla.GLAForCausalLM; `forward` returns hidden states, `compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.linear_attention_config import linear_attention_arguments, linear_attention_weights
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.linear_decoder_layer import LinearDecoderLayer

# What the layer fixes and the configuration does not say.
GATE_LOW_RANK_DIM, GATE_LOGIT_NORMALIZER = 16, 16.0
# Defaults of the production configuration class.
EXPAND_K, EXPAND_V, HIDDEN_RATIO = 0.5, 1.0, 4


class GLAForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        num_layers = reader.integer("num_hidden_layers")
        self.layers = nn.ModuleList(LinearDecoderLayer(**layer) for _ in range(num_layers))
        self.norm = RMSNorm(hidden_size, layer["norm_eps"])
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(reader, layer)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]. No layer needs positions:
        the states carry the order."""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual)
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
    config.choice("model_type", {"gla": None})
    config.refuse(["use_gv", "clamp_min"])
    if not config.flag("use_gk", default=True):
        raise config.error("use_gk", "false is not supported")
    return {
        **linear_attention_arguments(config, EXPAND_K, EXPAND_V, HIDDEN_RATIO),
        "gate_low_rank_dim": GATE_LOW_RANK_DIM,
        "gate_logit_normalizer": GATE_LOGIT_NORMALIZER,
    }


def weight_map(config: ConfigReader, layer: dict[str, Any]) -> WeightMap:
    """Names of a checkpoint; the gate's first matrix reads the hidden states."""
    gate = "model.layers.*.attn.gk_proj"
    return linear_attention_weights(
        config,
        layer,
        names={f"{gate}.1.*": "layers.*.attn.gate_proj.linear.*"},
        read={f"{gate}.0.weight": layer["gate_low_rank_dim"]},
    )
