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
from fastkernels.nn.weights import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.linear_decoder_layer import LinearDecoderLayer

ACTIVATIONS = {"swish": "silu", "silu": "silu"}
# What the layer fixes and the configuration does not say.
GATE_LOW_RANK_DIM, GATE_LOGIT_NORMALIZER = 16, 16.0
# Defaults of the production configuration class.
EXPAND_K, EXPAND_V, HIDDEN_RATIO, NORM_EPS = 0.5, 1.0, 4, 1e-6
INTERMEDIATE_MULTIPLE = 256


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
        self.weight_map = weight_map(layer, reader.flag("fuse_norm", default=True))

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
    config.refuse(["use_short_conv", "use_gv", "feature_map", "clamp_min", "attn", "quantization_config"])
    for key in ("use_gk", "use_output_gate", "elementwise_affine"):
        if not config.flag(key, default=True):
            raise config.error(key, "false is not supported")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_heads")
    if config.integer("num_kv_heads", default=num_heads) != num_heads:
        raise config.error("num_kv_heads", f"must be num_heads, {num_heads}: shared keys are not supported")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size", default=None)
        or intermediate_size(hidden_size, config.number("hidden_ratio", default=HIDDEN_RATIO)),
        "num_heads": num_heads,
        "key_dim": head_dim(config, "expand_k", EXPAND_K),
        "value_dim": head_dim(config, "expand_v", EXPAND_V),
        "gate_low_rank_dim": GATE_LOW_RANK_DIM,
        "gate_logit_normalizer": GATE_LOGIT_NORMALIZER,
        "norm_eps": config.number("norm_eps", default=NORM_EPS),
        "hidden_act": config.choice("hidden_act", ACTIVATIONS, default="swish"),
    }


def intermediate_size(hidden_size: int, ratio: float) -> int:
    """Two thirds of ratio * hidden, as a gated block has three matrices, rounded up to a multiple."""
    wanted = int(hidden_size * ratio * 2 / 3)
    return -(-wanted // INTERMEDIATE_MULTIPLE) * INTERMEDIATE_MULTIPLE


def head_dim(config: ConfigReader, key: str, default: float) -> int:
    """Features of one head: the hidden size times what the configuration expands it by, split over heads."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_heads")
    width = int(hidden_size * config.number(key, default=default))
    if not width or width % num_heads:
        raise config.error(key, f"gives {width} features, no multiple of num_heads, {num_heads}")
    return width // num_heads


def weight_map(layer: dict[str, Any], is_fused: bool) -> WeightMap:
    """Names of a checkpoint; what reads the hidden states fills one matrix, gate and up another. A norm that
    is fused with its gate has another name there."""
    keys, values = (layer["num_heads"] * layer[name] for name in ("key_dim", "value_dim"))
    gate_rows = up_rows = layer["intermediate_size"]
    head_norm = "g_norm_swish_gate" if is_fused else "g_norm"
    names = {
        "model.embeddings.weight": "embed_tokens.embedding.weight",
        "model.layers.*.attn_norm.weight": "layers.*.attn_norm.weight",
        "model.layers.*.attn.gk_proj.1.*": "layers.*.attn.gate_proj.linear.*",
        f"model.layers.*.attn.{head_norm}.weight": "layers.*.attn.norm.weight",
        "model.layers.*.attn.o_proj.weight": "layers.*.attn.o_proj.linear.weight",
        "model.layers.*.mlp_norm.weight": "layers.*.mlp_norm.weight",
        "model.layers.*.mlp.down_proj.weight": "layers.*.mlp.down_proj.linear.weight",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    packed = {
        "layers.*.attn.in_proj.linear.weight": {
            "model.layers.*.attn.q_proj.weight": keys,
            "model.layers.*.attn.k_proj.weight": keys,
            "model.layers.*.attn.v_proj.weight": values,
            "model.layers.*.attn.g_proj.weight": values,
            "model.layers.*.attn.gk_proj.0.weight": layer["gate_low_rank_dim"],
        },
        "layers.*.mlp.gate_up_proj.linear.weight": {
            "model.layers.*.mlp.gate_proj.weight": gate_rows,
            "model.layers.*.mlp.up_proj.weight": up_rows,
        },
    }
    return WeightMap(names, packed, repeated={"lm_head.weight": "model.embeddings.weight"})
