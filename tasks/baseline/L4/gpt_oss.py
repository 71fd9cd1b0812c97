"""Decoder-only language model of experts with weights of four bits, attention sinks and windows: GPT-OSS.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

T tokens, D hidden, V vocabulary. Every layer is the mxfp4 variant of L3/moe_decoder_layer: attention with
biases on all projections, a sink for each query head and yarn rotary positions, over the last
`sliding_window` tokens in layers of the type sliding_attention; a router with a bias, and experts in MXFP4.
Everything but the experts' matrices has the dtype of the module, logits are float32. `config` is the model's
Hugging Face configuration, complete.
Mirrors vllm.model_executor.models.gpt_oss.GptOssForCausalLM; `forward` returns hidden states,
`compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.kernels.low_bit_dequant import GROUP
from fastkernels.nn.attention_config import attention_arguments
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.decoder_weights import decoder_weights
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.experts_config import expert_arguments
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.moe_decoder_layer import MXFP4MoEDecoderLayer

FULL, SLIDING = "full_attention", "sliding_attention"
LIMIT = 7.0  # of the activation where an older configuration does not say it
# Where a configuration says nothing of its positions: transformers' class derives these.
ROPE = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class GptOssForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer, windows = layer_arguments(reader), layer_windows(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(
            MXFP4MoEDecoderLayer(**layer, sliding_window=window) for window in windows
        )
        self.norm = RMSNorm(hidden_size, layer["rms_norm_eps"])
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
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
    """The arguments of every layer, less its window; a UsageError names the key that is wrong or not
    supported."""
    config.choice("model_type", {"gpt_oss": None})
    config.choice("hidden_act", {"silu": None})
    config.refuse(["tie_word_embeddings"])
    if not config.flag("attention_bias"):
        raise config.error("attention_bias", "must be true: attention without biases is not supported")
    if not config.has("quantization_config"):
        raise config.error(
            "quantization_config", "is missing: experts that are not in MXFP4 are not supported"
        )
    config.section("quantization_config").choice("quant_method", {"mxfp4": None})
    sizes = {key: config.integer(key) for key in ("hidden_size", "intermediate_size")}
    for key, size in sizes.items():
        if size % GROUP:
            raise config.error(
                key, f"{size} is no multiple of the {GROUP} elements that share a scale in MXFP4"
            )
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        config = ConfigReader({**config.config, "rope_parameters": ROPE})
    return {
        **attention_arguments(config),
        "intermediate_size": sizes["intermediate_size"],
        **expert_arguments(config, "num_local_experts"),
        "limit": config.number("swiglu_limit", default=LIMIT),
        "rms_norm_eps": config.number("rms_norm_eps"),
    }


def layer_windows(config: ConfigReader) -> list[int | None]:
    """For each layer the keys that a query sees, itself included; None: all. Without `layer_types` they
    alternate, and the first layer has a window."""
    window, num_layers = config.integer("sliding_window"), config.integer("num_hidden_layers")
    kinds = [(SLIDING, FULL)[i % 2] for i in range(num_layers)]
    if config.has("layer_types"):
        kinds = config.names("layer_types", num_layers, (SLIDING, FULL))
    return [window if kind == SLIDING else None for kind in kinds]


def weight_map(layer: dict[str, Any]) -> WeightMap:
    """Names of a Hugging Face checkpoint. Rows of gate and up projection alternate there as here."""
    theirs, ours = "model.layers.*", "layers.*"
    names = {
        f"{theirs}.self_attn.sinks": f"{ours}.self_attn.attn.sinks",
        f"{theirs}.mlp.router.*": f"{ours}.block_sparse_moe.gate.*",
    }
    for matrix, part in (("gate_up_proj", "w13"), ("down_proj", "w2")):
        experts = f"{ours}.block_sparse_moe.experts.{part}"
        for suffix, parameter in (("blocks", "weight"), ("scales", "weight_scale"), ("bias", "bias")):
            names[f"{theirs}.mlp.experts.{matrix}_{suffix}"] = f"{experts}.{parameter}"
    return decoder_weights(layer, may_tie=False) | WeightMap(names)
