"""Dense decoder-only language model: Llama 2 and 3, Mistral, Qwen2 and Qwen2.5, Qwen3.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

T tokens, D hidden, V vocabulary. Parameters, activations and caches have the dtype of the module, logits
float32. `config` is the model's Hugging Face configuration, complete; what a model type does and its
configuration does not say is FAMILIES.
Mirrors vllm.model_executor.models.llama.LlamaForCausalLM (also qwen2.Qwen2ForCausalLM,
qwen3.Qwen3ForCausalLM, mistral.MistralForCausalLM); `forward` returns hidden states, `compute_logits` the
logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fastkernels.nn.attention_config import attention_arguments
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.decoder_weights import decoder_weights, gated_mlp_weights
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.decoder_layer import DecoderLayer


@dataclass(frozen=True)
class Family:
    """What a model type does. bias: of attention; "flag": on all four projections if `attention_bias` is
    true, "qkv": always on the first three, "never". window: whether `sliding_window` holds: never, always, or
    if it is used."""

    bias: str = "flag"
    qk_norm: bool = False
    window: str = "never"


FAMILIES = {
    "llama": Family(),
    "mistral": Family(bias="never", window="always"),
    "qwen2": Family(bias="qkv", window="if used"),
    "qwen3": Family(qk_norm=True, window="if used"),
}
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
FULL, SLIDING = "full_attention", "sliding_attention"


class LlamaForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer, windows = layer_arguments(reader), layer_windows(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(**layer, sliding_window=window) for window in windows)
        self.norm = RMSNorm(hidden_size, layer["rms_norm_eps"])
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(layer)

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
    """The arguments of every DecoderLayer, less its window; a UsageError names the key that is wrong or not
    supported."""
    family = config.choice("model_type", FAMILIES)
    config.refuse(["quantization_config"])
    if family.bias == "never":
        config.refuse(["attention_bias"])
    has_bias = family.bias == "flag" and config.flag("attention_bias")
    eps = config.number("rms_norm_eps")
    return {
        **attention_arguments(config),
        "intermediate_size": config.integer("intermediate_size"),
        "rms_norm_eps": eps,
        "hidden_act": config.choice("hidden_act", ACTIVATIONS),
        "qkv_bias": has_bias or family.bias == "qkv",
        "mlp_bias": config.flag("mlp_bias"),
        "qk_norm_eps": eps if family.qk_norm else None,
        "bias_o_proj": has_bias,
    }


def layer_windows(config: ConfigReader) -> list[int | None]:
    """For each layer the keys that a query sees, itself included; None: all. A UsageError names the key that
    is wrong."""
    family, num_layers = config.choice("model_type", FAMILIES), config.integer("num_hidden_layers")
    if family.window == "never":
        config.refuse(["sliding_window", "use_sliding_window"])
    is_used = family.window == "always" or (family.window == "if used" and config.flag("use_sliding_window"))
    window = config.integer("sliding_window", default=None) if is_used else None
    if not config.has("layer_types"):
        is_by_layer = window is not None and family.window == "if used"
        first = config.integer("max_window_layers", minimum=0) if is_by_layer else 0
        return [window if i >= first else None for i in range(num_layers)]
    kinds = config.names("layer_types", num_layers, (FULL, SLIDING))
    if SLIDING in kinds and window is None:
        raise config.error("layer_types", f"{SLIDING!r} without a sliding_window in use")
    if FULL in kinds and window is not None and family.window == "always":
        raise config.error("layer_types", f"{FULL!r} contradicts sliding_window {window}")
    return [window if kind == SLIDING else None for kind in kinds]


def weight_map(layer: dict[str, Any]) -> WeightMap:
    """Names of a Hugging Face checkpoint. Old files carry rotary frequencies."""
    mlp = gated_mlp_weights(layer["intermediate_size"])
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq",)
    return decoder_weights(layer) | mlp | WeightMap(ignored=ignored)
