"""Qwen3-VL with mixtures of experts: tower, levels and text of L4/qwen3_vl, experts in every layer.

    h = layer_i(h)                     as there, layer_i of L3/moe_decoder_layer with normed heads

E experts, F intermediate, D hidden. The k experts of a token have the largest of softmax(logits), weighted by
them, which are renormalised if norm_topk_prob. Checkpoints hold the experts of a layer as stacks whose rows
are inputs, [E, D, 2F] and [E, F, D], gate before up; a matrix for each expert and part, with outputs as
rows, is accepted too. Parameters, activations and caches have the dtype of the module, logits float32.
Weights of eight bits (fp8, a scale for each block of 128 x 128) are expanded to that dtype when they are
loaded; products are of that dtype then, and activations are not quantised.
Mirrors vllm.model_executor.models.qwen3_vl_moe.Qwen3VLMoeForConditionalGeneration; `forward` returns hidden
states.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from fastkernels.nn.block_scales import BlockScales
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.experts_config import expert_arguments, expert_weights
from fastkernels.nn.weight_map import WeightMap

from ..L3.moe_decoder_layer import MoEDecoderLayer
from .qwen3_vl import TEXT, Qwen3VLForConditionalGeneration, attention_of, weight_map


class Qwen3VLMoeForConditionalGeneration(Qwen3VLForConditionalGeneration):
    def decoder(self, config: ConfigReader) -> tuple[nn.ModuleList, WeightMap]:
        """The layers, and the names of all weights."""
        layer = layer_arguments(config)
        layers = (MoEDecoderLayer(**layer) for _ in range(config.integer("num_hidden_layers")))
        names = weight_map(layer) | expert_names(layer) | WeightMap(folding=block_scales(config))
        return nn.ModuleList(layers), names


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every MoEDecoderLayer; a UsageError names the key that is wrong or not supported."""
    config.refuse(["mlp_only_layers"], neutral=(None, []))
    config.refuse(["decoder_sparse_step"], neutral=(None, 1))
    # Newer libraries write the one, older files the other; a completed configuration may have both.
    experts = "num_local_experts" if config.has("num_local_experts") else "num_experts"
    return {
        **attention_of(config),
        "intermediate_size": config.integer("moe_intermediate_size"),
        **expert_arguments(config, experts),
        "renormalize": config.flag("norm_topk_prob", default=True),
    }


def block_scales(config: ConfigReader) -> BlockScales | None:
    """How a checkpoint's weights are expanded; None: they are none of eight bits."""
    if not config.has("quantization_config"):
        return None
    section = config.section("quantization_config")
    section.choice("quant_method", {"fp8": None})
    section.choice("fmt", {"e4m3": None}, default="e4m3")
    block, *others = section.integers("weight_block_size")
    if others != [block]:
        raise section.error("weight_block_size", f"must be two equal numbers, not {[block, *others]}")
    return BlockScales(block)


def expert_names(layer: dict[str, Any]) -> WeightMap:
    """Of a layer's router and experts."""
    theirs, ours = f"{TEXT}layers.*.mlp", "layers.*.block_sparse_moe"
    experts = f"{theirs}.experts"
    others = WeightMap(
        names={f"{theirs}.gate.weight": f"{ours}.gate.weight"},
        transposed=(f"{experts}.gate_up_proj", f"{experts}.down_proj"),
    )
    return expert_weights(layer, experts, f"{ours}.experts", stacks=experts) | others
