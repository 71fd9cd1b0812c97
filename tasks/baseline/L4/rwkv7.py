"""Decoder-only language model RWKV-7: states in the place of keys and values, no attention, no positions.

    h = layer_norm(E[ids]; w_pre);  h = layer_i(h) for each i;  logits = float32(layer_norm(h; w_f) W_head^T)

T tokens, D hidden, V vocabulary. The first layer's values, v_first, go to all others. Parameters and
activations have the dtype of the module, states and logits are float32. `config` is the model's Hugging Face
configuration.
Mirrors fla.models.rwkv7.RWKV7ForCausalLM; `forward` returns hidden states, `compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.fusion import Fusion, add_and_norm
from fastkernels.nn.weight_map import WeightMap

from ..L1.layer_norm import LayerNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.rwkv7_decoder_layer import RWKV7Block

# Defaults of the production configuration class.
HIDDEN_RATIO, HEAD_DIM, NORM_EPS = 4, 64, 1e-5
LOW_RANKS = {"decay": 64, "gate": 128, "a": 64, "v": 16}
INTERMEDIATE_MULTIPLE = 32


class RWKV7ForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        num_layers = reader.integer("num_hidden_layers")
        self.layers = nn.ModuleList(RWKV7Block(**layer, is_first=i == 0) for i in range(num_layers))
        self.norm = LayerNorm(hidden_size, layer["norm_eps"])
        self.fuses = Fusion(self, "norm")
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(layer, num_layers)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]. No layer needs positions:
        the states carry the order."""
        hidden_states, residual, v_first = self.embed_tokens(input_ids), None, None
        for layer in self.layers:
            hidden_states, residual, v_first = layer(hidden_states, residual, v_first)
        assert residual is not None, "there is at least one layer"
        return add_and_norm(hidden_states, residual, self.norm, self.fuses)[0]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the batch calls."""
        return language_model(self, batch)


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every layer; a UsageError names the key that is wrong or not supported."""
    config.choice("model_type", {"rwkv7": None})
    config.choice("hidden_act", {"sqrelu": None}, default="sqrelu")
    config.refuse(["attn", "quantization_config"])
    for key in ("norm_first", "norm_bias"):
        if not config.flag(key, default=True):
            raise config.error(key, "false is not supported")
    hidden_size = config.integer("hidden_size")
    if config.has("num_heads") and not config.has("head_dim"):
        head_dim, key = hidden_size // config.integer("num_heads"), "num_heads"
    else:
        head_dim, key = config.integer("head_dim", default=HEAD_DIM), "head_dim"
    if not head_dim or hidden_size % head_dim:
        raise config.error(key, f"{config.config.get(key)} does not divide hidden_size, {hidden_size}")
    if config.integer("num_heads", default=hidden_size // head_dim) * head_dim != hidden_size:
        raise config.error("num_heads", f"must be {hidden_size // head_dim}, of head_dim {head_dim} each")
    layers, widths = config.integer("num_hidden_layers"), config.config.get("value_dim")
    if widths not in (None, hidden_size, [hidden_size] * layers):
        raise config.error("value_dim", f"{widths} is not supported; supported: {hidden_size}")
    ranks = {f"{name}_low_rank_dim": rank for name, rank in LOW_RANKS.items()}
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size", default=None)
        or intermediate_size(hidden_size, config.number("hidden_ratio", default=HIDDEN_RATIO)),
        "norm_eps": config.number("norm_eps", default=NORM_EPS),
        "attn": {"head_dim": head_dim} | {key: config.integer(key, rank) for key, rank in ranks.items()},
    }


def intermediate_size(hidden_size: int, ratio: float) -> int:
    """ratio * hidden, rounded up to a multiple."""
    return -(-int(hidden_size * ratio) // INTERMEDIATE_MULTIPLE) * INTERMEDIATE_MULTIPLE


def weight_map(layer: dict[str, Any], num_layers: int) -> WeightMap:
    """Names of a checkpoint; what reads the shifted inputs fills one matrix, shares of time mix another.
    Older files have all six of these in one tensor."""
    theirs, ours = "model.layers.*", "layers.*"
    d, ranks = layer["hidden_size"], layer["attn"]
    names = {
        "model.embeddings.weight": "embed_tokens.embedding.weight",
        "model.layers.*.pre_norm.*": "layers.*.pre_norm.*",
        f"{theirs}.attn_norm.*": f"{ours}.attn_norm.*",
        f"{theirs}.attn.k_k": f"{ours}.attn.heads.k_k",
        f"{theirs}.attn.k_a": f"{ours}.attn.heads.k_a",
        f"{theirs}.attn.r_k": f"{ours}.attn.heads.r_k",
        **{f"{theirs}.attn.{x}_lora.lora.2.*": f"{ours}.attn.heads.{x}_lora.*" for x in "wavg"},
        f"{theirs}.attn.g_norm.*": f"{ours}.attn.heads.g_norm.*",
        f"{theirs}.attn.o_proj.weight": f"{ours}.attn.o_proj.linear.weight",
        f"{theirs}.ffn_norm.*": f"{ours}.ffn_norm.*",
        f"{theirs}.ffn.x_k": f"{ours}.ffn.x_k",
        f"{theirs}.ffn.key.weight": f"{ours}.ffn.key.linear.weight",
        f"{theirs}.ffn.value.weight": f"{ours}.ffn.value.linear.weight",
        "model.norm.*": "norm.*",
        "lm_head.weight": "lm_head.linear.weight",
    }
    packed = {f"{ours}.attn.heads.x_x": {f"{theirs}.attn.x_{x}": 1 for x in "rwkvag"}}
    for i in range(num_layers):
        sizes = {
            "r_proj": d,
            "w_lora.lora.0": ranks["decay_low_rank_dim"],
            "k_proj": d,
            "v_proj": d,
            "v_lora.lora.0": ranks["v_low_rank_dim"],
            "a_lora.lora.0": ranks["a_low_rank_dim"],
            "g_lora.lora.0": ranks["gate_low_rank_dim"],
        }
        if i == 0:
            del sizes["v_lora.lora.0"]
        packed[f"layers.{i}.attn.in_proj.weight"] = {
            f"model.layers.{i}.attn.{name}.weight": rows for name, rows in sizes.items()
        }
    return WeightMap(
        names,
        packed,
        spellings={f"{theirs}.attn.x_x": f"{ours}.attn.heads.x_x"},
        repeated={"lm_head.weight": "model.embeddings.weight"},
        vectors={f"{ours}.attn.heads.x_x": 3},
    )
