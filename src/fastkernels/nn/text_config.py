"""Of text encoders as transformers writes them: their arguments, and the names of their weights."""

from __future__ import annotations

from typing import Any

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.weight_map import WeightMap

CLIP_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu"}
T5_ACTIVATIONS = {"gated-gelu": "gelu_tanh", "gated-silu": "silu"}
BERT_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
# What CLIP's configurations said while nobody read it; the end of a prompt has the largest id there.
UNREAD_END = 2
CLIP_PREFIX = "text_model."  # of the hub's files; newer libraries write none


def clip_arguments(config: ConfigReader) -> dict[str, Any]:
    """What a CLIPTextModel is made with; a UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise config.error("hidden_size", f"{hidden_size} is no multiple of num_attention_heads, {num_heads}")
    end_id = config.integer("eos_token_id", minimum=0)
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size"),
        "num_layers": config.integer("num_hidden_layers"),
        "num_heads": num_heads,
        "max_length": config.integer("max_position_embeddings"),
        "hidden_act": config.choice("hidden_act", CLIP_ACTIVATIONS),
        "layer_norm_eps": config.number("layer_norm_eps"),
        "end_id": None if end_id == UNREAD_END else end_id,
    }


def t5_arguments(config: ConfigReader) -> dict[str, Any]:
    """What a T5EncoderModel is made with; a UsageError names the key that is wrong."""
    return {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": config.integer("d_model"),
        "intermediate_size": config.integer("d_ff"),
        "num_layers": config.integer("num_layers"),
        "num_heads": config.integer("num_heads"),
        "head_size": config.integer("d_kv"),
        "hidden_act": config.choice("feed_forward_proj", T5_ACTIVATIONS),
        "eps": config.number("layer_norm_epsilon"),
        "num_buckets": config.integer("relative_attention_num_buckets"),
        "max_distance": config.integer("relative_attention_max_distance"),
    }


def bert_arguments(config: ConfigReader) -> tuple[dict[str, Any], dict[str, Any], int]:
    """What a SummedEmbedding and each PostNormEncoderLayer are made with, and the number of layers; a
    UsageError names the key that is wrong."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise config.error("hidden_size", f"{hidden_size} is no multiple of num_attention_heads, {num_heads}")
    config.refuse(("is_decoder", "add_cross_attention"))
    config.choice("position_embedding_type", {"absolute": None}, default="absolute")
    shared = {"hidden_size": hidden_size, "layer_norm_eps": config.number("layer_norm_eps")}
    embedding = {
        "vocab_size": config.integer("vocab_size"),
        "max_position_embeddings": config.integer("max_position_embeddings"),
        "type_vocab_size": config.integer("type_vocab_size"),
    }
    layer = {
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": num_heads,
        "hidden_act": config.choice("hidden_act", BERT_ACTIVATIONS),
    }
    return embedding | shared, layer | shared, config.integer("num_hidden_layers")


def clip_weights(arguments: dict[str, Any], unread: tuple[str, ...] = ()) -> WeightMap:
    """Names of the hub's file; query, key and value fill one matrix. unread: of an encoder that is left
    before its end."""
    layer, ours = "encoder.layers.*", "layers.*"
    names = {
        "embeddings.token_embedding.weight": "embed_tokens.embedding.weight",
        "embeddings.position_embedding.weight": "embed_positions.weight",
        f"{layer}.layer_norm1.*": f"{ours}.self_attn_layer_norm.*",
        f"{layer}.layer_norm2.*": f"{ours}.final_layer_norm.*",
        f"{layer}.self_attn.out_proj.*": f"{ours}.self_attn.out_proj.linear.*",
        f"{layer}.mlp.fc1.*": f"{ours}.mlp.fc1.linear.*",
        f"{layer}.mlp.fc2.*": f"{ours}.mlp.fc2.linear.*",
        "final_layer_norm.*": "final_layer_norm.*",
    }
    parts = {f"{layer}.self_attn.{part}_proj.*": arguments["hidden_size"] for part in ("q", "k", "v")}
    packed = {f"{ours}.self_attn.qkv_proj.linear.*": parts}
    without = WeightMap(names, packed, ignored=("embeddings.position_ids", *unread))
    return without.under(CLIP_PREFIX) | WeightMap(prefixes={CLIP_PREFIX: ""})


def t5_weights(arguments: dict[str, Any]) -> WeightMap:
    """Names of the hub's file; query, key and value fill one matrix, gate and up another."""
    block, ours = "encoder.block.*", "layers.*"
    attention, mlp = f"{block}.layer.0.SelfAttention", f"{block}.layer.1.DenseReluDense"
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    names = {
        "shared.weight": "embed_tokens.embedding.weight",
        table: "position_bias.embedding.weight",
        f"{block}.layer.0.layer_norm.weight": f"{ours}.self_attn_layer_norm.weight",
        f"{attention}.o.weight": f"{ours}.self_attn.out_proj.linear.weight",
        f"{block}.layer.1.layer_norm.weight": f"{ours}.final_layer_norm.weight",
        f"{mlp}.wo.weight": f"{ours}.mlp.down_proj.linear.weight",
        "encoder.final_layer_norm.weight": "final_layer_norm.weight",
    }
    rows, inner = arguments["num_heads"] * arguments["head_size"], arguments["intermediate_size"]
    packed = {
        f"{ours}.self_attn.unscaled_qkv_proj.linear.weight": {
            f"{attention}.{part}.weight": rows for part in "qkv"
        },
        f"{ours}.mlp.gate_up_proj.linear.weight": {f"{mlp}.wi_{part}.weight": inner for part in (0, 1)},
    }
    return WeightMap(names, packed, repeated={"encoder.embed_tokens.weight": "shared.weight"})


def bert_weights(hidden_size: int) -> WeightMap:
    """Names without a prefix; query, key and value fill one matrix. The pooler, which pre-training needed, is
    left out."""
    layer, ours = "encoder.layer.*", "layers.*"
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    names = {
        **{f"embeddings.{table}.weight": f"embeddings.{table}.weight" for table in tables},
        "embeddings.LayerNorm.*": "embeddings.layer_norm.*",
        f"{layer}.attention.output.dense.*": f"{ours}.self_attn.out_proj.linear.*",
        f"{layer}.attention.output.LayerNorm.*": f"{ours}.self_attn_layer_norm.*",
        f"{layer}.intermediate.dense.*": f"{ours}.mlp.fc1.linear.*",
        f"{layer}.output.dense.*": f"{ours}.mlp.fc2.linear.*",
        f"{layer}.output.LayerNorm.*": f"{ours}.final_layer_norm.*",
    }
    parts = {f"{layer}.attention.self.{part}.*": hidden_size for part in ("query", "key", "value")}
    packed = {f"{ours}.self_attn.qkv_proj.linear.*": parts}
    return WeightMap(names, packed, ignored=("embeddings.position_ids", "pooler.dense.*"))
