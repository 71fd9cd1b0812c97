"""Names of a decoder's weights as most Hugging Face checkpoints of language models have them."""

from __future__ import annotations

from collections.abc import Mapping

from fastkernels.nn.weight_map import WeightMap


def decoder_weights(heads: Mapping[str, int], under: str = "model.", may_tie: bool = True) -> WeightMap:
    """Embedding, attention, norms and head; not the feed-forward blocks. Query, key and value fill one
    matrix.

    heads: num_heads, num_kv_heads and head_dim; under: what stands before all names but the head's; may_tie:
    whether the head may repeat the embedding.
    """
    parts = {"q": "num_heads", "k": "num_kv_heads", "v": "num_kv_heads"}
    theirs, ours = f"{under}layers.*", "layers.*"
    norms = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
    names = {
        f"{under}embed_tokens.weight": "embed_tokens.embedding.weight",
        **{f"{theirs}.{norm}.weight": f"{ours}.{norm}.weight" for norm in norms},
        f"{theirs}.self_attn.o_proj.*": f"{ours}.self_attn.o_proj.linear.*",
        f"{under}norm.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    packed = {
        f"{ours}.self_attn.qkv_proj.linear.*": {
            f"{theirs}.self_attn.{part}_proj.*": heads[number] * heads["head_dim"]
            for part, number in parts.items()
        }
    }
    repeated = {"lm_head.weight": f"{under}embed_tokens.weight"} if may_tie else {}
    return WeightMap(names, packed, repeated=repeated)


def gated_mlp_weights(
    intermediate_size: int, theirs: str = "model.layers.*.mlp", ours: str = "layers.*.mlp"
) -> WeightMap:
    """Of a feed-forward block. Gate and up fill one matrix."""
    return WeightMap(
        {f"{theirs}.down_proj.*": f"{ours}.down_proj.linear.*"},
        {
            f"{ours}.gate_up_proj.linear.*": {
                f"{theirs}.{part}_proj.*": intermediate_size for part in ("gate", "up")
            }
        },
    )
