"""Decoder-only language model of Mamba mixers, with some attention and some mixtures of experts: Jamba.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

    layer_i        attention   if i mod attn_layer_period = attn_layer_offset, else a Mamba mixer
    feed-forward   experts     if i mod expert_layer_period = expert_layer_offset, else dense

T tokens, D hidden, V vocabulary. No positions: the states of the mixers carry the order. The probabilities
of the chosen experts are not renormalised. Parameters, activations and paged caches have the dtype of the
module; A_log, states and logits are float32. `config` is the model's Hugging Face configuration, complete.
Mirrors vllm.model_executor.models.jamba.JambaForCausalLM; `forward` returns hidden states, `compute_logits`
the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.attention_config import head_arguments
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.experts_config import expert_weights
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.decoder_layer import DecoderLayer
from ..L3.mamba_decoder_layer import MambaDecoderLayer
from ..L3.moe_decoder_layer import MoEDecoderLayer
from ..L3.moe_mamba_decoder_layer import MoEMambaDecoderLayer

HIDDEN_FOR_A_RANK = 16  # mamba_dt_rank "auto"


class JambaForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        reader.choice("model_type", {"jamba": None})
        reader.choice("hidden_act", {"silu": None})
        reader.refuse(["sliding_window", "quantization_config"])
        heads, eps = head_arguments(reader), reader.number("rms_norm_eps")
        vocab_size, hidden_size = reader.integer("vocab_size"), heads["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(
            decoder_layer(reader, i, heads, eps) for i in range(reader.integer("num_hidden_layers"))
        )
        self.norm = RMSNorm(hidden_size, eps)
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(reader, heads)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]"""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            if isinstance(layer, (MambaDecoderLayer, MoEMambaDecoderLayer)):
                hidden_states, residual = layer(hidden_states, residual)
            else:
                hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the batch calls."""
        return language_model(self, batch)


def decoder_layer(config: ConfigReader, index: int, heads: dict[str, Any], eps: float) -> nn.Module:
    """Layer `index`; a UsageError names the key that is wrong or not supported."""
    num_experts = config.integer("num_experts")
    top_k = config.integer("num_experts_per_tok")
    if top_k > num_experts > 1:
        raise config.error("num_experts_per_tok", f"{top_k} of {num_experts} experts cannot be chosen")
    width = config.integer("intermediate_size")
    is_moe = num_experts > 1 and is_chosen(config, "expert_layer", index)
    experts = {"num_experts": num_experts, "top_k": top_k, "renormalize": False}
    if is_chosen(config, "attn_layer", index):
        max_position = config.integer("max_position_embeddings")
        attention = {**heads, "max_position": max_position, "rope_parameters": None}
        if is_moe:
            return MoEDecoderLayer(**attention, intermediate_size=width, rms_norm_eps=eps, **experts)
        return DecoderLayer(**attention, intermediate_size=width, rms_norm_eps=eps)
    mamba = mamba_arguments(config)
    if is_moe:
        return MoEMambaDecoderLayer(heads["hidden_size"], width, mamba, rms_norm_eps=eps, **experts)
    return MambaDecoderLayer(heads["hidden_size"], width, mamba, eps)


def is_chosen(config: ConfigReader, kind: str, index: int) -> bool:
    """Whether layer `index` is one of `kind`: every so many layers, from an offset on."""
    period, offset = config.integer(f"{kind}_period"), config.integer(f"{kind}_offset", minimum=0)
    if offset >= period:
        raise config.error(f"{kind}_offset", f"must be less than {kind}_period, {period}, not {offset}")
    return index % period == offset


def mamba_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every mixer, less hidden_size and rms_norm_eps."""
    hidden_size, rank = config.integer("hidden_size"), config.config.get("mamba_dt_rank")
    return {
        "ssm_state_size": config.integer("mamba_d_state"),
        "conv_kernel_size": config.integer("mamba_d_conv", minimum=2),
        "intermediate_size": config.integer("mamba_expand") * hidden_size,
        "time_step_rank": -(-hidden_size // HIDDEN_FOR_A_RANK)
        if rank == "auto"
        else config.integer("mamba_dt_rank"),
        "use_conv_bias": config.flag("mamba_conv_bias", default=True),
        "use_bias": config.flag("mamba_proj_bias"),
        "use_rms_norm": True,
    }


def weight_map(config: ConfigReader, heads: dict[str, Any]) -> WeightMap:
    """Names of a Hugging Face checkpoint. Which of them a layer has depends on its kind."""
    q_rows, kv_rows = (heads[name] * heads["head_dim"] for name in ("num_heads", "num_kv_heads"))
    width = config.integer("intermediate_size")
    theirs, ours = "model.layers.*", "layers.*"
    experts, norms = f"{theirs}.feed_forward.experts", ("dt_layernorm", "b_layernorm", "c_layernorm")
    names = {
        "model.embed_tokens.weight": "embed_tokens.embedding.weight",
        f"{theirs}.input_layernorm.weight": f"{ours}.input_layernorm.weight",
        f"{theirs}.pre_ff_layernorm.weight": f"{ours}.post_attention_layernorm.weight",
        f"{theirs}.self_attn.o_proj.weight": f"{ours}.self_attn.o_proj.linear.weight",
        f"{theirs}.mamba.in_proj.*": f"{ours}.mamba.in_proj.linear.*",
        f"{theirs}.mamba.conv1d.weight": f"{ours}.mamba.conv_weight",
        f"{theirs}.mamba.conv1d.bias": f"{ours}.mamba.conv_bias",
        f"{theirs}.mamba.x_proj.weight": f"{ours}.mamba.x_proj.weight",
        **{f"{theirs}.mamba.{norm}.weight": f"{ours}.mamba.{norm}.weight" for norm in norms},
        f"{theirs}.mamba.dt_proj.weight": f"{ours}.mamba.dt_proj.linear.weight",
        f"{theirs}.mamba.dt_proj.bias": f"{ours}.mamba.dt_bias",
        f"{theirs}.mamba.A_log": f"{ours}.mamba.A_log",
        f"{theirs}.mamba.D": f"{ours}.mamba.D",
        f"{theirs}.mamba.out_proj.*": f"{ours}.mamba.out_proj.linear.*",
        f"{theirs}.feed_forward.down_proj.weight": f"{ours}.mlp.down_proj.linear.weight",
        f"{theirs}.feed_forward.router.weight": f"{ours}.block_sparse_moe.gate.weight",
        "model.final_layernorm.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    packed = {
        f"{ours}.self_attn.qkv_proj.linear.weight": {
            f"{theirs}.self_attn.q_proj.weight": q_rows,
            f"{theirs}.self_attn.k_proj.weight": kv_rows,
            f"{theirs}.self_attn.v_proj.weight": kv_rows,
        },
        f"{ours}.mlp.gate_up_proj.linear.weight": {
            f"{theirs}.feed_forward.gate_proj.weight": width,
            f"{theirs}.feed_forward.up_proj.weight": width,
        },
    }
    layer = heads | {"num_experts": config.integer("num_experts"), "intermediate_size": width}
    moe = expert_weights(layer, experts, f"{ours}.block_sparse_moe.experts", stacks=experts)
    return WeightMap(names, packed, repeated={"lm_head.weight": "model.embed_tokens.weight"}) | moe
