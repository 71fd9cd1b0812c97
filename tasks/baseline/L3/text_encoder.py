"""Text encoders: token ids of prompts to features, of the whole prompt (clip) or of each token (t5).

    clip    h = E[ids] + P[positions];  h = layer_i(h) for each i, causal;  y = layer_norm(h[end])
    t5      h = E[ids];  h = layer_i(h; bias) for each i;  y = rms_norm(h)

B prompts of S tokens, D hidden, V vocabulary. `end` is the first token with the configuration's eos_token_id;
where that is 2, as files from before it was right say, the first of the largest ids. All ids count, those of
padding too. The bias of the scores is that of the first layer's table. Parameters and activations have the
dtype of the module. `config` is the Hugging Face configuration.
Mirrors transformers.models.clip.modeling_clip.CLIPTextModel (`pooler_output`) and
transformers.models.t5.modeling_t5.T5EncoderModel (`last_hidden_state`), without a mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.weights import WeightMap

from ..L1.embedding import Embedding, RelativePositionBias
from ..L1.layer_norm import LayerNorm
from ..L1.rms_norm import RMSNorm
from ..L2.parallel_embedding import VocabParallelEmbedding
from .encoder_layer import EncoderLayer, T5Block

CLIP_ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu"}
T5_ACTIVATIONS = {"gated-gelu": "gelu_tanh", "gated-silu": "silu"}
UNSET_EOS = 2  # what configurations said while nobody read it


class CLIPTextModel(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        hidden_size, num_heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
        if hidden_size % num_heads:
            raise reader.error(
                "hidden_size", f"{hidden_size} is no multiple of num_attention_heads, {num_heads}"
            )
        self.features = hidden_size
        self.vocab_size = reader.integer("vocab_size")
        self.max_length = reader.integer("max_position_embeddings", default=77)
        self.eos_token_id = reader.integer("eos_token_id", default=49407, minimum=0)
        eps = reader.number("layer_norm_eps", default=1e-5)

        self.embed_tokens = VocabParallelEmbedding(self.vocab_size, hidden_size)
        self.embed_positions = Embedding(self.max_length, hidden_size)
        self.layers = nn.ModuleList(
            EncoderLayer(
                hidden_size,
                reader.integer("intermediate_size"),
                num_heads,
                reader.choice("hidden_act", CLIP_ACTIVATIONS, default="quick_gelu"),
                eps,
                causal=True,
            )
            for _ in range(reader.integer("num_hidden_layers"))
        )
        self.final_layer_norm = LayerNorm(hidden_size, eps)
        self.weight_map = clip_weight_map(hidden_size)

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 [B, S], S at most max_length -> [B, D]"""
        positions_S = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden_BSD = self.embed_tokens(input_ids.flatten()).unflatten(0, input_ids.shape)
        hidden_TD = (hidden_BSD + self.embed_positions(positions_S)).flatten(0, 1)
        starts_B1, length = _rows(input_ids)
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, starts_B1, length)
        # A row's norm is its own: only the rows that are asked for are normalised.
        return self.final_layer_norm(hidden_TD[starts_B1[:-1] + self._ends(input_ids)])

    def _ends(self, ids_BS: Tensor) -> Tensor:
        """int64 [B]; of equal values argmax finds the first."""
        if self.eos_token_id == UNSET_EOS:
            return ids_BS.argmax(dim=-1)
        return (ids_BS == self.eos_token_id).int().argmax(dim=-1)


class T5EncoderModel(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        hidden_size, num_heads = reader.integer("d_model"), reader.integer("num_heads")
        head_size, intermediate_size = reader.integer("d_kv"), reader.integer("d_ff")
        eps = reader.number("layer_norm_epsilon", default=1e-6)
        activation = reader.choice("feed_forward_proj", T5_ACTIVATIONS)
        self.features = hidden_size
        self.vocab_size = reader.integer("vocab_size")

        self.embed_tokens = VocabParallelEmbedding(self.vocab_size, hidden_size)
        self.position_bias = RelativePositionBias(
            reader.integer("relative_attention_num_buckets", default=32),
            num_heads,
            reader.integer("relative_attention_max_distance", default=128),
        )
        self.layers = nn.ModuleList(
            T5Block(hidden_size, intermediate_size, num_heads, head_size, activation, eps)
            for _ in range(reader.integer("num_layers"))
        )
        self.final_layer_norm = RMSNorm(hidden_size, eps)
        self.weight_map = t5_weight_map(num_heads * head_size, intermediate_size)

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


def clip_weight_map(hidden_size: int) -> WeightMap:
    """Names of the hub's file, whose prefix newer libraries do not write; query, key and value fill one
    matrix."""
    prefix = "text_model."
    layer, ours = f"{prefix}encoder.layers.*", "layers.*"
    names = {
        f"{prefix}embeddings.token_embedding.weight": "embed_tokens.embedding.weight",
        f"{prefix}embeddings.position_embedding.weight": "embed_positions.weight",
        f"{layer}.layer_norm1.*": f"{ours}.self_attn_layer_norm.*",
        f"{layer}.layer_norm2.*": f"{ours}.final_layer_norm.*",
        f"{layer}.self_attn.out_proj.*": f"{ours}.self_attn.out_proj.linear.*",
        f"{layer}.mlp.fc1.*": f"{ours}.mlp.fc1.linear.*",
        f"{layer}.mlp.fc2.*": f"{ours}.mlp.fc2.linear.*",
        f"{prefix}final_layer_norm.*": "final_layer_norm.*",
    }
    packed = {
        f"{ours}.self_attn.qkv_proj.linear.*": {
            f"{layer}.self_attn.{part}_proj.*": hidden_size for part in ("q", "k", "v")
        }
    }
    return WeightMap(names, packed, ignored=(f"{prefix}embeddings.position_ids",), prefix=prefix)


def t5_weight_map(attention_size: int, intermediate_size: int) -> WeightMap:
    """Names of the hub's file; query, key and value fill one matrix, gate and up another."""
    block, ours = "encoder.block.*", "layers.*"
    attention = f"{block}.layer.0.SelfAttention"
    names = {
        "shared.weight": "embed_tokens.embedding.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (
            "position_bias.embedding.weight"
        ),
        f"{block}.layer.0.layer_norm.weight": f"{ours}.self_attn_layer_norm.weight",
        f"{attention}.o.weight": f"{ours}.self_attn.out_proj.linear.weight",
        f"{block}.layer.1.layer_norm.weight": f"{ours}.final_layer_norm.weight",
        f"{block}.layer.1.DenseReluDense.wo.weight": f"{ours}.mlp.down_proj.linear.weight",
        "encoder.final_layer_norm.weight": "final_layer_norm.weight",
    }
    packed = {
        f"{ours}.self_attn.qkv_proj.linear.weight": {
            f"{attention}.{part}.weight": attention_size for part in ("q", "k", "v")
        },
        f"{ours}.mlp.gate_up_proj.linear.weight": {
            f"{block}.layer.1.DenseReluDense.wi_{part}.weight": intermediate_size for part in (0, 1)
        },
    }
    # The same table as `shared`, in files that hold it twice.
    return WeightMap(names, packed, ignored=("encoder.embed_tokens.weight",))
