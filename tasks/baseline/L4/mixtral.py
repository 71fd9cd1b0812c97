"""Decoder-only language model whose feed-forward blocks are mixtures of experts: Mixtral.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)

T tokens, D hidden, V vocabulary. Every layer is L3/moe_decoder_layer; attention is that of L4/llama.
Parameters, activations and caches have the dtype of the module, logits float32. `config` is the model's
Hugging Face configuration, complete.
Mirrors vllm.model_executor.models.mixtral.MixtralForCausalLM; `forward` returns hidden states,
`compute_logits` the logits.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fastkernels.nn.attention_config import attention_arguments
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.decoder_weights import decoder_weights
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.experts_config import expert_arguments, expert_weights
from fastkernels.nn.weight_map import WeightMap

from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.moe_decoder_layer import MoEDecoderLayer


class MixtralForCausalLM(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer = layer_arguments(reader)
        vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]

        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        num_layers = reader.integer("num_hidden_layers")
        self.layers = nn.ModuleList(MoEDecoderLayer(**layer) for _ in range(num_layers))
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
    """The arguments of every MoEDecoderLayer; a UsageError names the key that is wrong or not supported."""
    config.choice("model_type", {"mixtral": "mixtral"})
    config.choice("hidden_act", {"silu": "silu"})
    config.refuse(["attention_bias", "quantization_config"])
    # Noise on the router's input is a matter of training; at inference it must be off.
    config.refuse(["router_jitter_noise"], neutral=(None, 0, 0.0))
    return {
        **attention_arguments(config),
        "intermediate_size": config.integer("intermediate_size"),
        **expert_arguments(config, "num_local_experts"),
        "rms_norm_eps": config.number("rms_norm_eps"),
        "sliding_window": config.integer("sliding_window", default=None),
    }


def weight_map(layer: dict[str, Any]) -> WeightMap:
    """Names of a Hugging Face checkpoint: w1 is an expert's gate, w3 its up, w2 its down projection.
    transformers 5 calls the block `mlp` and stacks the experts: these names are accepted too. Old files carry
    rotary frequencies."""
    theirs, newer, ours = "model.layers.*.block_sparse_moe", "model.layers.*.mlp", "layers.*.block_sparse_moe"
    experts = expert_weights(
        layer, f"{theirs}.experts", f"{ours}.experts", ("w1", "w3", "w2"), stacks=f"{newer}.experts"
    )
    others = WeightMap(
        names={f"{theirs}.gate.weight": f"{ours}.gate.weight"},
        spellings={f"{newer}.gate.weight": f"{ours}.gate.weight"},
        ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",),
    )
    return decoder_weights(layer) | experts | others
