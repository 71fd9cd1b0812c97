"""Whisper: an encoder of audio clips, and a decoder of tokens that listens to it.

    e = encoder(log_mel(audio))                                          once for each request
    h = E[ids] + P[positions];  h = layer_i(h, e) for each i;  logits = float32(layer_norm(h) W_head^T)

B clips of N samples, S encoder states of a clip, T tokens, D hidden, V vocabulary, A requests that begin in
a step. Features are float32; parameters, activations and caches have the dtype of the module, logits
float32. `config` is the Hugging Face configuration.
Mirrors vllm.model_executor.models.whisper.WhisperForConditionalGeneration (`encode` is its
get_multimodal_embeddings, with the front end) and WhisperEncoder; `forward` returns hidden states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples, language_model
from fastkernels.nn.weight_map import ZEROS, WeightMap

from ..L1.embedding import Embedding
from ..L1.layer_norm import LayerNorm
from ..L1.log_mel import LogMel
from ..L1.sampling import Sampler
from ..L1.softmax import Softmax
from ..L2.audio_stem import AudioStem
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.cross_decoder_layer import CrossDecoderLayer
from ..L3.encoder_layer import EncoderLayer

ACTIVATIONS = {"gelu": "gelu"}
# Of the feature extractor, whose file is not the model's: the same for all of the family.
SAMPLING_RATE, HOP_LENGTH, FRAMES_PER_STATE = 16000, 160, 2


class WhisperEncoder(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        hidden_size, states = reader.integer("d_model"), reader.integer("max_source_positions")
        num_mel_bins = reader.integer("num_mel_bins")
        self.num_states = states
        self.num_samples = states * FRAMES_PER_STATE * HOP_LENGTH
        self.sampling_rate = SAMPLING_RATE
        self.log_mel = LogMel(num_mel_bins, SAMPLING_RATE, hop_length=HOP_LENGTH)
        self.stem = AudioStem(num_mel_bins, hidden_size, states)
        layer = layer_arguments(reader, "encoder")
        self.layers = nn.ModuleList(EncoderLayer(**layer) for _ in range(reader.integer("encoder_layers")))
        self.layer_norm = LayerNorm(hidden_size)

    def forward(self, audio: Tensor) -> Tensor:
        """float32 [B, N], values -1 .. 1 at 16 kHz, zeros behind a shorter clip -> [B, S, D]"""
        return self.states(self.log_mel(audio).to(self.layer_norm.weight.dtype))

    def states(self, features: Tensor) -> Tensor:
        """log-mel features [B, M, F], in the weights' dtype -> [B, S, D]"""
        clips = features.shape[0]
        hidden_TD = self.stem(features)
        starts_B1 = torch.arange(clips + 1, dtype=torch.int32, device=features.device) * self.num_states
        for layer in self.layers:
            hidden_TD = layer(hidden_TD, starts_B1, self.num_states)
        return self.layer_norm(hidden_TD).unflatten(0, (clips, self.num_states))


class WhisperForConditionalGeneration(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        reader.refuse(["scale_embedding", "quantization_config"])
        vocab_size, hidden_size = reader.integer("vocab_size"), reader.integer("d_model")
        layer = layer_arguments(reader, "decoder")
        layer["max_source_positions"] = reader.integer("max_source_positions")

        self.encoder = WhisperEncoder(config)
        self.embed_tokens = VocabParallelEmbedding(vocab_size, hidden_size)
        self.embed_positions = Embedding(reader.integer("max_target_positions"), hidden_size)
        layers = reader.integer("decoder_layers")
        self.layers = nn.ModuleList(CrossDecoderLayer(**layer) for _ in range(layers))
        self.layer_norm = LayerNorm(hidden_size)
        self.lm_head = ParallelLMHead(vocab_size, hidden_size)
        if reader.flag("tie_word_embeddings", default=True):
            self.lm_head.linear.weight = self.embed_tokens.embedding.weight
        self.softmax = Softmax()
        self.sampler = Sampler()
        self.weight_map = weight_map(hidden_size)

    def encode(self, audio: Tensor) -> Tensor:
        """float32 [B, N] -> encoder states [B, S, D]"""
        return self.encoder(audio)

    def forward(
        self, input_ids: Tensor, positions: Tensor, encoder_hidden_states: Tensor | None = None
    ) -> Tensor:
        """input_ids and positions [T], encoder_hidden_states [A*S, D] of the requests that begin (None: none)
        -> hidden states after the final norm [T, D]"""
        hidden_states = self.embed_tokens(input_ids) + self.embed_positions(positions)
        for layer in self.layers:
            hidden_states = layer(hidden_states, encoder_hidden_states)
        return self.layer_norm(hidden_states)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32"""
        return self.lm_head(hidden_states)

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a step of the decoder calls, or to encode a batch of clips."""
        if run == "forward":
            hidden_size = self.layer_norm.weight.shape[0]
            yield from language_model(self, batch, (self.encoder.num_states, hidden_size))
        else:
            clips = len(batch.seq_lens)
            yield run, (torch.empty(clips, self.encoder.num_samples, dtype=torch.float32),)


def layer_arguments(config: ConfigReader, side: str) -> dict[str, Any]:
    """What every layer of the `encoder` or the `decoder` is made with; a UsageError names the key that is
    wrong."""
    hidden_size, heads = config.integer("d_model"), f"{side}_attention_heads"
    num_heads = config.integer(heads)
    if hidden_size % num_heads:
        raise config.error("d_model", f"{hidden_size} is no multiple of {heads}, {num_heads}")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer(f"{side}_ffn_dim"),
        "num_heads": num_heads,
        "hidden_act": config.choice("activation_function", ACTIVATIONS),
    }


def weight_map(hidden_size: int) -> WeightMap:
    """Names of the hub's file. Query, key and value of self-attention fill one matrix, key and value of
    cross-attention another; keys have no bias in the file."""
    names = {
        "model.encoder.conv1.*": "encoder.stem.conv1.*",
        "model.encoder.conv2.*": "encoder.stem.conv2.*",
        "model.encoder.embed_positions.weight": "encoder.stem.embed_positions",
        "model.encoder.layer_norm.*": "encoder.layer_norm.*",
        "model.decoder.embed_tokens.weight": "embed_tokens.embedding.weight",
        "model.decoder.embed_positions.weight": "embed_positions.weight",
        "model.decoder.layer_norm.*": "layer_norm.*",
        "model.decoder.layers.*.encoder_attn_layer_norm.*": "layers.*.encoder_attn_layer_norm.*",
        "model.decoder.layers.*.encoder_attn.q_proj.*": "layers.*.encoder_attn.q_proj.*",
        "model.decoder.layers.*.encoder_attn.out_proj.*": "layers.*.encoder_attn.out_proj.linear.*",
        "proj_out.weight": "lm_head.linear.weight",
    }
    packed: dict[str, dict[str, int]] = {}
    for theirs, ours in (
        ("model.encoder.layers.*", "encoder.layers.*"),
        ("model.decoder.layers.*", "layers.*"),
    ):
        names |= {
            f"{theirs}.self_attn_layer_norm.*": f"{ours}.self_attn_layer_norm.*",
            f"{theirs}.self_attn.out_proj.*": f"{ours}.self_attn.out_proj.linear.*",
            f"{theirs}.fc1.*": f"{ours}.mlp.fc1.linear.*",
            f"{theirs}.fc2.*": f"{ours}.mlp.fc2.linear.*",
            f"{theirs}.final_layer_norm.*": f"{ours}.final_layer_norm.*",
        }
        packed |= _packed(f"{ours}.self_attn.qkv_proj.linear", f"{theirs}.self_attn", "qkv", hidden_size)
    cross = ("layers.*.encoder_attn.kv_proj.linear", "model.decoder.layers.*.encoder_attn", "kv")
    packed |= _packed(*cross, hidden_size)
    return WeightMap(names, packed, repeated={"proj_out.weight": "model.decoder.embed_tokens.weight"})


def _packed(ours: str, theirs: str, parts: str, rows: int) -> dict[str, dict[str, int]]:
    weight = {f"{theirs}.{part}_proj.weight": rows for part in parts}
    bias = {ZEROS if part == "k" else f"{theirs}.{part}_proj.bias": rows for part in parts}
    return {f"{ours}.weight": weight, f"{ours}.bias": bias}
