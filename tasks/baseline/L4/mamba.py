"""Decoder-only language model of Mamba mixers alone: no attention, no feed-forward blocks, no positions.

    h = E[ids];  h = h + mixer_i(rms_norm(h; w_i)) for each i;  logits = float32(rms_norm(h; w_f) W_head^T)

T tokens, D hidden, V vocabulary; W_head is usually E. The states of the mixers carry the order. Parameters
and activations have the dtype of the module; the sums h (with residual_in_fp32), A_log, states and logits are
float32. `config` is the model's Hugging Face configuration, complete.
Mirrors vllm.model_executor.models.mamba.MambaForCausalLM; `forward` returns hidden states, `compute_logits`
the logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.mixer_decoder_layer import MambaBlock

HIDDEN_FOR_A_RANK = 16  # time_step_rank "auto"


class MambaForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        reader.choice("model_type", {"mamba": None})
        reader.choice("hidden_act", {"silu": None})
        reader.refuse(["quantization_config"])
        vocab_size, hidden_size = reader.integer("vocab_size"), reader.integer("hidden_size")
        mixer, eps = mixer_arguments(reader), reader.number("layer_norm_epsilon")
        self.residual_in_fp32 = reader.flag("residual_in_fp32")

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        num_layers = reader.integer("num_hidden_layers")
        self.layers = nn.ModuleList(MambaBlock(hidden_size, mixer, eps) for _ in range(num_layers))
        self.norm = RMSNorm(hidden_size, eps)
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings"):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map()

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """input_ids and positions [T] -> hidden states after the final norm [T, D]. No layer needs positions:
        the states carry the order."""
        hidden_states = self.embed_tokens(input_ids)
        least = torch.float32 if self.residual_in_fp32 else hidden_states.dtype
        residual = torch.zeros_like(hidden_states, dtype=torch.promote_types(hidden_states.dtype, least))
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


def mixer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every mixer, less hidden_size; a UsageError names the key that is wrong."""
    hidden_size, rank = config.integer("hidden_size"), config.config.get("time_step_rank")
    intermediate_size = config.integer("expand") * hidden_size
    if config.integer("intermediate_size", default=intermediate_size) != intermediate_size:
        raise config.error("intermediate_size", f"must be expand times hidden_size, {intermediate_size}")
    return {
        "ssm_state_size": config.integer("state_size"),
        "conv_kernel_size": config.integer("conv_kernel", minimum=2),
        "intermediate_size": intermediate_size,
        "time_step_rank": -(-hidden_size // HIDDEN_FOR_A_RANK)
        if rank == "auto"
        else config.integer("time_step_rank"),
        "use_conv_bias": config.flag("use_conv_bias"),
        "use_bias": config.flag("use_bias"),
        "use_rms_norm": False,
    }


def weight_map() -> WeightMap:
    """Names of a Hugging Face checkpoint; older ones call the embedding `embedding`."""
    theirs, ours = "backbone.layers.*", "layers.*"
    names = {
        "backbone.embeddings.weight": "embed_tokens.embedding.weight",
        f"{theirs}.norm.weight": f"{ours}.norm.weight",
        f"{theirs}.mixer.in_proj.*": f"{ours}.mixer.in_proj.linear.*",
        f"{theirs}.mixer.conv1d.weight": f"{ours}.mixer.conv_weight",
        f"{theirs}.mixer.conv1d.bias": f"{ours}.mixer.conv_bias",
        f"{theirs}.mixer.x_proj.weight": f"{ours}.mixer.x_proj.weight",
        f"{theirs}.mixer.dt_proj.weight": f"{ours}.mixer.dt_proj.linear.weight",
        f"{theirs}.mixer.dt_proj.bias": f"{ours}.mixer.dt_bias",
        f"{theirs}.mixer.A_log": f"{ours}.mixer.A_log",
        f"{theirs}.mixer.D": f"{ours}.mixer.D",
        f"{theirs}.mixer.out_proj.*": f"{ours}.mixer.out_proj.linear.*",
        "backbone.norm_f.weight": "norm.weight",
        "lm_head.weight": "lm_head.linear.weight",
    }
    return WeightMap(
        names,
        spellings={"backbone.embedding.weight": "embed_tokens.embedding.weight"},
        repeated={"lm_head.weight": "backbone.embeddings.weight"},
    )
