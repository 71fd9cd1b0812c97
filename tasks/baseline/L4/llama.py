"""Dense decoder-only language model: Llama 2 and 3, Mistral, Qwen2 and Qwen2.5, Qwen3.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

T tokens, D hidden, V vocabulary. Parameters, activations and caches have the dtype of the module, logits
float32. `config` is the model's Hugging Face configuration; what a model type does and its configuration
does not say is FAMILIES.
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
from fastkernels.nn.weights import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.decoder_layer import DecoderLayer


@dataclass(frozen=True)
class Family:
    """What a model type does. window: whether `sliding_window` holds: never, always, or if it is used."""

    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None  # where the configuration has none; None: hidden_size / heads
    window: str = "never"


FAMILIES = {
    "llama": Family(),
    "mistral": Family(window="always"),
    "qwen2": Family(qkv_bias=True, window="if used"),
    "qwen3": Family(qk_norm=True, head_dim=128, window="if used"),
}
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
# Defaults of transformers' configuration classes.
RMS_NORM_EPS, SLIDING_WINDOW, MAX_WINDOW_LAYERS = 1e-6, 4096, 28


class LlamaForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]
        is_tied = reader.flag("tie_word_embeddings")

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(**layer) for _ in range(reader.integer("num_hidden_layers")))
        self.norm = RMSNorm(hidden_size, layer["rms_norm_eps"])
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if is_tied:
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(layer, is_tied)

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


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every DecoderLayer; a UsageError names the key that is wrong or not supported."""
    family = config.choice("model_type", FAMILIES)
    refused = ["quantization_config"] if family.qkv_bias else ["attention_bias", "quantization_config"]
    config.refuse(refused)
    eps = config.number("rms_norm_eps", default=RMS_NORM_EPS)
    return {
        **attention_arguments(config, family.head_dim),
        "intermediate_size": config.integer("intermediate_size"),
        "rms_norm_eps": eps,
        "activation": config.choice("hidden_act", ACTIVATIONS, default="silu"),
        "qkv_bias": family.qkv_bias,
        "mlp_bias": config.flag("mlp_bias"),
        "qk_norm_eps": eps if family.qk_norm else None,
        "window": attention_window(config, family),
    }


def attention_window(config: ConfigReader, family: Family) -> int | None:
    """Keys that a query sees, itself included; None: all. One value for all layers, or a UsageError."""
    if family.window == "never":
        config.refuse(["sliding_window", "use_sliding_window"])
        window = None
    elif family.window == "if used" and not config.flag("use_sliding_window"):
        window = None
    else:
        # Null means no window; an absent key means transformers' default.
        is_absent = "sliding_window" not in config.config
        window = config.integer("sliding_window", default=SLIDING_WINDOW if is_absent else None)

    kinds, key = layer_kinds(config, family, window)
    if len(kinds) > 1:
        raise config.error(key, "a sliding window in only some of the layers is not supported")
    if kinds == {"sliding_attention"} and window is None:
        raise config.error(key, "'sliding_attention' without a sliding_window in use")
    if kinds == {"full_attention"} and window is not None and family.window == "always":
        raise config.error(key, f"'full_attention' contradicts sliding_window {window}")
    return window if kinds == {"sliding_attention"} else None


def layer_kinds(config: ConfigReader, family: Family, window: int | None) -> tuple[set[str], str]:
    """The kinds of attention among the layers, and the key that says so."""
    num_layers = config.integer("num_hidden_layers")
    if config.has("layer_types"):
        kinds = config.config["layer_types"]
        if not isinstance(kinds, (list, tuple)) or len(kinds) != num_layers:
            raise config.error("layer_types", f"must be a list of {num_layers} names, not {kinds!r}")
        if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
            raise config.error("layer_types", f"{unknown.pop()!r} is not supported")
        return set(kinds), "layer_types"
    if window is None:
        return {"full_attention"}, "sliding_window"
    if family.window == "always":
        return {"sliding_attention"}, "sliding_window"
    first = config.integer("max_window_layers", default=MAX_WINDOW_LAYERS, minimum=0)
    kinds = {"sliding_attention" if i >= first else "full_attention" for i in range(num_layers)}
    return kinds, "max_window_layers"


def weight_map(layer: dict[str, Any], is_tied: bool) -> WeightMap:
    """Names of a Hugging Face checkpoint; query, key and value fill one matrix, gate and up another."""
    q_rows, kv_rows = (layer[heads] * layer["head_size"] for heads in ("num_heads", "num_kv_heads"))
    gate_rows = up_rows = layer["intermediate_size"]
    names = {
        "model.embed_tokens.weight": "embed_tokens.embedding.weight",
        "model.layers.*.input_layernorm.weight": "layers.*.input_layernorm.weight",
        "model.layers.*.self_attn.q_norm.weight": "layers.*.self_attn.q_norm.weight",
        "model.layers.*.self_attn.k_norm.weight": "layers.*.self_attn.k_norm.weight",
        "model.layers.*.self_attn.o_proj.*": "layers.*.self_attn.o_proj.linear.*",
        "model.layers.*.post_attention_layernorm.weight": "layers.*.post_attention_layernorm.weight",
        "model.layers.*.mlp.down_proj.*": "layers.*.mlp.down_proj.linear.*",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    packed = {
        "layers.*.self_attn.qkv_proj.linear.*": {
            "model.layers.*.self_attn.q_proj.*": q_rows,
            "model.layers.*.self_attn.k_proj.*": kv_rows,
            "model.layers.*.self_attn.v_proj.*": kv_rows,
        },
        "layers.*.mlp.gate_up_proj.linear.*": {
            "model.layers.*.mlp.gate_proj.*": gate_rows,
            "model.layers.*.mlp.up_proj.*": up_rows,
        },
    }
    # Checkpoints of tied models may repeat the embedding as a head; old files carry rotary frequencies.
    ignored = ("model.layers.*.self_attn.rotary_emb.inv_freq", *(("lm_head.weight",) if is_tied else ()))
    return WeightMap(names, packed, ignored)
