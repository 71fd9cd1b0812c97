"""LLaDA: a language model that fills blocks of masked positions, the most confident ones first.

    h = E[ids];  h = layer_i(h) for each i;  h = rms_norm(h; w_final);  logits = float32(h W_head^T)
    id = argmax logits[t]                                 of each masked t, or a draw with a temperature
    confidence = softmax(logits[t])[id]

T tokens of B texts, packed one behind the other, D hidden, V vocabulary, L positions of a block. Layers
attend in both directions, and position t predicts token t; the mask's id is never predicted. Which positions
are filled: nn/block_filling.py. Texts are not padded: one that begins with ids of padding is given with them.
`config` is the Hugging Face configuration of the checkpoint.
Mirrors GSAI-ML/LLaDA-8B-Instruct's LLaDAModelLM (transformers.LlamaForCausalLM without its mask is the same
function) and Fast-dLLM's generate and generate_with_dual_cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.block_filling import Blocks, Filling, chosen, filling, require_forced, require_number
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.program import Call, Place, Program, RequestError, Stage
from fastkernels.nn.weight_map import WeightMap

from ..L1.confidence import TokenConfidence
from ..L1.rms_norm import RMSNorm
from ..L1.sampling import Sampler
from ..L2.parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from ..L3.bidirectional_layer import BidirectionalLayer

MOST_TEXTS = 32  # of one launch: of 450 tokens each 7.5 GB of keys and values
MOST_SEED = 2**63 - 1
Caches = list[tuple[Tensor, Tensor]]  # keys, rotated, and values [T, H, K] of each layer


class LLaDAModelLM(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer, num_layers = layer_arguments(reader), reader.integer("n_layers")
        hidden_size = layer["hidden_size"]
        self.vocab_size = reader.integer("embedding_size", default=reader.integer("vocab_size"))
        self.max_length = layer["max_position"]
        self.mask_id = reader.integer("mask_token_id", minimum=0)
        if self.mask_id >= self.vocab_size:
            raise reader.error("mask_token_id", f"{self.mask_id} is none of {self.vocab_size} ids")
        self.cache_shape = layer["num_heads"], layer["head_dim"]

        self.embed_tokens = VocabParallelEmbedding(self.vocab_size, hidden_size)
        self.layers = nn.ModuleList(BidirectionalLayer(**layer) for _ in range(num_layers))
        self.norm = RMSNorm(hidden_size, layer["rms_norm_eps"])
        self.lm_head = ParallelLMHead(self.vocab_size, hidden_size)
        self.sampler = Sampler()
        self.confidence = TokenConfidence(self.vocab_size)
        self.weight_map = weight_map(hidden_size, layer["intermediate_size"])

    def forward(self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """input_ids and positions int64 [T], cu_seqlens int32 [B+1] from 0 to T -> logits [T, V] float32"""
        slots_T = torch.arange(len(input_ids), device=input_ids.device)
        rows = (slots_T, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        return self.lm_head(self.states(input_ids, positions, self.caches(input_ids), *rows))

    def caches(self, input_ids: Tensor) -> Caches:
        """For all tokens of the rows, not filled."""
        weight = self.norm.weight

        def empty() -> Tensor:
            return torch.empty(len(input_ids), *self.cache_shape, dtype=weight.dtype, device=input_ids.device)

        return [(empty(), empty()) for _ in self.layers]

    def states(
        self,
        input_ids: Tensor,
        positions: Tensor,
        caches: Caches,
        slots: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
    ) -> Tensor:
        """Hidden states after the final norm [N, D] of the N tokens at `slots` of the T; their keys and
        values are in the caches then."""
        hidden_states, residual = self.embed_tokens(input_ids), None
        rows = (slots, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        for layer, (key_cache, value_cache) in zip(self.layers, caches, strict=True):
            hidden_states, residual = layer(positions, hidden_states, residual, key_cache, value_cache, *rows)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states

    def predict(
        self, hidden_states: Tensor, temperature: Tensor, seeds: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        """hidden_states [N, D], temperature float32 [N], seeds and at int64 [N], the identity of a draw ->
        ids int64 [N], logarithms of their confidence [N]"""
        logits_NV = self.lm_head(hidden_states)
        logits_NV[:, self.mask_id] = -torch.inf
        ids_N = self.sampler(logits_NV, temperature, None, None, seeds, at)
        return ids_N, self.confidence(logits_NV, ids_N)

    def fill(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        begins: Tensor,
        seeds: Tensor,
        temperature: Tensor,
        done: Tensor,
        forced: Tensor,
        max_seqlen: int,
        how: Filling,
    ) -> tuple[Tensor, Tensor]:
        """Some steps of one block of each text, whose first token has the place `begins` [B]; the others as
        nn/block_filling.Blocks gives them -> the block's tokens and what was predicted for them, int64 [B, L]
        each"""
        length, device = how.length, input_ids.device
        block_BL = begins[:, None] + torch.arange(length, device=device)
        slots_N = (cu_seqlens[:-1, None] + block_BL).flatten()
        all_T, starts_B1 = (
            torch.arange(0, size, step, dtype=dtype, device=device)
            for size, step, dtype in (
                (len(input_ids), 1, torch.int64),
                (len(slots_N) + 1, length, torch.int32),
            )
        )
        seeds_N, temperature_N, done_N = (x.repeat_interleave(length) for x in (seeds, temperature, done))
        tokens_BL = input_ids[slots_N].view_as(block_BL)
        predicted_BL, caches = tokens_BL, self.caches(input_ids)
        for step, count in enumerate(how.counts):
            if step == 0 or not how.cached:
                ids_T = input_ids.index_copy(0, slots_N, tokens_BL.flatten())
                whole = (all_T, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
                hidden_ND = self.states(ids_T, positions, caches, *whole)[slots_N]
            else:
                block = (slots_N, starts_B1, cu_seqlens, length, max_seqlen)
                hidden_ND = self.states(tokens_BL.flatten(), block_BL.flatten(), caches, *block)
            at_N = (done_N + step) * self.max_length + block_BL.flatten()
            ids_N, log_confidence_N = self.predict(hidden_ND, temperature_N, seeds_N, at_N)
            ids_BL = ids_N.view_as(block_BL)
            is_filled_BL = chosen(
                tokens_BL, log_confidence_N.view_as(block_BL), self.mask_id, count, how.threshold
            )
            predicted_BL = torch.where(is_filled_BL, ids_BL, predicted_BL)
            tokens_BL = torch.where(is_filled_BL, torch.where(forced < 0, ids_BL, forced), tokens_BL)
        return tokens_BL, predicted_BL

    def examples(self, run: str, batch: Batch) -> Examples:
        """What a pass over whole texts calls; by `states`, which only reads them, or a block of each, whose
        tokens are predicted."""
        tokens, total = batch.num_tokens, sum(batch.seq_lens)
        ids_N, positions_N, slots_N = (torch.empty(tokens, dtype=torch.int64) for _ in range(3))
        starts_B1, key_starts_B1 = (torch.empty(len(batch.seq_lens) + 1, dtype=torch.int32) for _ in range(2))
        if run == "forward":
            yield run, (ids_N, positions_N, starts_B1, max(batch.seq_lens))
            return
        caches = self.caches(torch.empty(total, dtype=torch.int64))
        rows = (starts_B1, key_starts_B1, max(batch.query_lens), max(batch.seq_lens))
        hidden_ND = yield run, (ids_N, positions_N, caches, slots_N, *rows)
        if tokens == total:  # the head reads a block of each
            return
        temperature_N = torch.empty(tokens, dtype=torch.float32)
        seeds_N, at_N = (torch.empty(tokens, dtype=torch.int64) for _ in range(2))
        yield "predict", (hidden_ND, temperature_N, seeds_N, at_N)

    def stages(self) -> dict[str, Stage]:
        return {"fill": Stage(Blocks(self.vocab_size, self.max_length, self.place.device), MOST_TEXTS)}

    def program(
        self,
        input_ids: Tensor,
        gen_length: int = 128,
        block_length: int = 128,
        steps: int = 128,
        temperature: float = 0.0,
        threshold: float | None = None,
        dual_cache: bool = False,
        seed: int = 0,
        forced: Tensor | None = None,
    ) -> Program:
        """int64 [P] -> token_ids int64 [gen_length]: what was predicted for each position when it was filled

        gen_length is a multiple of block_length, steps a multiple of the number of blocks, up to gen_length.
        A threshold (0 .. 1) fills more in a step; after a block's steps the program looks whether masks are
        left, and takes as many again. dual_cache: a block's later steps recompute its own keys and values
        alone. forced: ids [gen_length] that are filled in, whatever is predicted.
        """
        how = filling(gen_length, block_length, steps, threshold, dual_cache)
        require_number("temperature", temperature, 0, float("inf"))
        require_number("seed", seed, 0, MOST_SEED, whole=True)
        prompt = len(input_ids) if isinstance(input_ids, Tensor) and input_ids.dim() == 1 else 0
        if not prompt or input_ids.is_floating_point():
            raise RequestError("input_ids must be int64 [tokens], at least one")
        if prompt + gen_length > self.max_length:
            raise RequestError(
                f"{prompt} tokens of a prompt and gen_length {gen_length}: the model takes up to "
                f"{self.max_length} together"
            )
        if bool((input_ids == self.mask_id).any()):
            raise RequestError(f"input_ids has the mask, {self.mask_id}: only generated positions are masks")
        masks_G = torch.full((gen_length,), self.mask_id)
        tokens = torch.cat((input_ids.cpu().long(), masks_G))
        fed_G = (
            masks_G.fill_(-1)
            if forced is None
            else require_forced(forced, gen_length, self.vocab_size, self.mask_id)
        )
        predicted = []
        for first in range(0, gen_length, block_length):
            begin, done = prompt + first, 0
            block, is_first = tokens[begin : begin + block_length], True
            answer = block.clone()
            while is_first or bool((block == self.mask_id).any()):
                was_mask, is_first = block == self.mask_id, False
                fed_L = fed_G[first : first + block_length]
                filled, found = yield Call("fill", tokens, begin, how, seed, temperature, fed_L, done)
                answer = torch.where(was_mask, found.cpu(), answer)
                block.copy_(filled)
                done += len(how.counts)
            predicted.append(answer)
        return {"token_ids": torch.cat(predicted)}


def layer_arguments(config: ConfigReader) -> dict[str, Any]:
    """The arguments of every layer; a UsageError names the key that is wrong or not supported."""
    config.choice("block_type", {"llama": None})
    config.choice("activation_type", {"silu": None})
    config.choice("layer_norm_type", {"rms": None})
    off = ("include_bias", "include_qkv_bias", "bias_for_layer_norm", "weight_tying", "scale_logits", "alibi")
    config.refuse([*off, "input_emb_norm", "attention_layer_norm", "multi_query_attention", "clip_qkv"])
    if not config.flag("rope"):
        raise config.error("rope", "must be true: other positions are not supported")
    hidden_size, num_heads = config.integer("d_model"), config.integer("n_heads")
    if hidden_size % num_heads or (hidden_size // num_heads) % 2:
        raise config.error("n_heads", f"{num_heads} do not divide d_model {hidden_size} into pairs")
    if (num_kv_heads := config.integer("n_kv_heads", default=num_heads)) != num_heads:
        raise config.error("n_kv_heads", f"{num_kv_heads}: as many as n_heads, {num_heads}, are supported")
    return {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("mlp_hidden_size"),
        "num_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "max_position": config.integer("max_sequence_length"),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.number("rope_theta")},
        "rms_norm_eps": config.number("rms_norm_eps"),
    }


def weight_map(hidden_size: int, intermediate_size: int) -> WeightMap:
    """Names of the hub's file, where `ff_out` is the head and, in a block, the last product of its MLP."""
    top, block = "model.transformer", "model.transformer.blocks.*"
    names = {
        f"{top}.wte.weight": "embed_tokens.embedding.weight",
        f"{block}.attn_norm.weight": "layers.*.input_layernorm.weight",
        f"{block}.attn_out.weight": "layers.*.self_attn.o_proj.linear.weight",
        f"{block}.ff_norm.weight": "layers.*.post_attention_layernorm.weight",
        f"{block}.ff_out.weight": "layers.*.mlp.down_proj.linear.weight",
        f"{top}.ln_f.weight": "norm.weight",
        f"{top}.ff_out.weight": "lm_head.linear.weight",
    }
    packed = {
        "layers.*.self_attn.qkv_proj.linear.weight": {
            f"{block}.{part}.weight": hidden_size for part in ("q_proj", "k_proj", "v_proj")
        },
        "layers.*.mlp.gate_up_proj.linear.weight": {
            f"{block}.{part}.weight": intermediate_size for part in ("ff_proj", "up_proj")
        },
    }
    return WeightMap(names, packed)
