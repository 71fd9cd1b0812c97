"""TTT-E2E: a language model that goes on learning while it reads. Behind each chunk of a sequence its prime
weights, feed-forward blocks in the last layers, take a step down the gradient of the loss on that chunk.

    h = E[ids];  h = layer_i(h) for each layer of the prefix          of the whole sequence
    W = W_0;  for each chunk c of C tokens:
        nll[c], g = suffix(h[c], targets[c]; W)                       with the weights before the step
        W = W - lr g min(1, clip / |g|)                               |g|: over all prime weights

T tokens of a sequence, D hidden, F intermediate, K head size, L layers with prime weights, W [L, 3F, D]
(gate, up, and down with inputs as rows). Each sequence begins with W_0 and has prime weights of its own. A
token sees the last sliding_window_size tokens, itself included. W, its steps and the table of rotations are
float32; a chunk reads W in the dtype of the module, which its logits have too. The head is the embedding.
With learn=False W stays W_0. `config` has the settings by the names of the reference's configuration, and
`inner_optimizer` those of the step. Its warm-up belongs to training: behind it the step size is lr.
Mirrors ttt.model.transformer.MetaModel.loss_for_sequence in its modes meta (learn) and pretrain. A decoder
that learns token by token is no part of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.nn.batching import described, require_values
from fastkernels.nn.config import ConfigReader
from fastkernels.nn.examples import Batch, Examples
from fastkernels.nn.precision import at_least_float32
from fastkernels.nn.program import Call, Place, Program, RequestError, Stage
from fastkernels.nn.stacked_blocks import StackedBlocks
from fastkernels.nn.weight_map import WeightMap

from ..L1.clipped_sgd import ClippedSGD
from ..L1.diffusion_rope import FluxPosEmbed
from ..L2.parallel_embedding import VocabParallelEmbedding
from ..L3.ttt_decoder_layer import TTTDecoderLayer
from ..L3.ttt_suffix import TTTSuffix

MODEL = "language_model.model."  # before the names of a checkpoint's tensors
BLOCKS, PRIME = f"{MODEL}h.blocks.", f"{MODEL}h.prime_storage."
FEED_FORWARD_PRIME = "feed_forward_prime."
# What is the same mathematics in every released model.
NEEDED = ("qk_norm", "pre_norm", "post_norm", "prime", "tie_word_embeddings")


class TTTE2E(nn.Module):
    place: Place

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(config)
        layer, prefix, self.suffix_len = layer_arguments(reader)
        self.vocab_size, hidden_size = reader.integer("vocab_size"), layer["hidden_size"]
        self.chunk, self.seq_len = reader.integer("mini_batch_size"), reader.integer("seq_len")
        self.head_shape = layer["num_heads"], layer["head_dim"]
        self.prime_rows = 3 * layer["intermediate_size"]

        self.embed_tokens = VocabParallelEmbedding(self.vocab_size, hidden_size)
        self.rotary = FluxPosEmbed(reader.number("rope_theta"), [layer["head_dim"]])
        self.layers = nn.ModuleList(TTTDecoderLayer(**layer) for _ in range(prefix))
        self.suffix = TTTSuffix(self.suffix_len, self.vocab_size, **layer)
        self.suffix.lm_head.weight = self.embed_tokens.embedding.weight
        with at_least_float32():
            rows = self.suffix_len * self.prime_rows
            self.prime = nn.Parameter(torch.empty(rows, hidden_size), requires_grad=False)
        self.descend = ClippedSGD(*optimizer_arguments(reader.section("inner_optimizer")))
        self.weight_map = weight_map(prefix, self.suffix_len, layer)

    def forward(self, input_ids: Tensor, targets: Tensor, learn: bool = True) -> tuple[Tensor, Tensor]:
        """int64 [B, T] each, T a multiple of C -> (nll [B, T], what has been added to W_0 [B, L, 3F, D]),
        both at least float32"""
        read = [self.read(*one, learn) for one in zip(input_ids, targets)]
        nll, learnt = (torch.stack(each) for each in zip(*read))
        return nll, learnt

    def read(self, input_ids: Tensor, targets: Tensor, learn: bool) -> tuple[Tensor, Tensor]:
        """One sequence: [T] -> (nll [T], learnt [L, 3F, D])"""
        tokens, dtype = len(input_ids), self.suffix.lm_head.weight.dtype
        rotary_TK = self.rotary(torch.arange(tokens, device=input_ids.device)[:, None])
        h_TD = self.embed_tokens(input_ids)
        for layer in self.layers:
            h_TD = layer(h_TD, rotary_TK)
        caches = h_TD.new_empty(2, tokens, self.suffix_len, *self.head_shape)
        first = prime = self.prime.unflatten(0, (-1, self.prime_rows))
        nll = []
        for start in range(0, tokens, self.chunk):
            chunk = slice(start, start + self.chunk)
            given = (h_TD[chunk], targets[chunk], prime.to(dtype), rotary_TK[chunk])
            found = self.suffix(*given, *caches[:, : chunk.stop], learn)
            if learn:
                found, grad = found
                prime = self.descend(prime, grad)
            nll.append(found)
        return torch.cat(nll), prime - first

    def examples(self, run: str, batch: Batch) -> Examples:
        """Sequences of one length that learn (`forward`), or a chunk behind what was read (`suffix`)."""
        (tokens,) = set(batch.seq_lens)
        if run == "suffix":
            chunk, hidden, (heads, size) = batch.num_tokens, self.prime.shape[1], self.head_shape
            h, targets = torch.empty(chunk, hidden), torch.empty(chunk, dtype=torch.int64)
            prime = torch.empty(self.suffix_len, self.prime_rows, hidden)
            rotary = torch.empty(chunk, size, dtype=self.rotary.dtype)
            caches = torch.empty(2, tokens, self.suffix_len, heads, size)
            yield run, (h, targets, prime, rotary, *caches, True)
            return
        ids, targets = (torch.empty(len(batch.seq_lens), tokens, dtype=torch.int64) for _ in range(2))
        yield run, (ids, targets, True)

    def stages(self) -> dict[str, Stage]:
        return {"forward": Stage(most=1)}

    def program(self, input_ids: Tensor, targets: Tensor | None = None, learn: bool = True) -> Program:
        """int64 [T], T a multiple of mini_batch_size up to seq_len -> nll float32 [T], before each chunk's
        step, and prime_change float32 [L, 3F], of each row of the prime weights the sum of what was added

        targets: of each token the next, int64 [T]; without them the token behind, the first one behind the
        last. learn=False: the prime weights stay as they are.
        """
        if learn not in (True, False):
            raise RequestError(f"learn must be true or false, not {learn!r:.60}")
        self.require_ids("input_ids", input_ids)
        if targets is None:
            targets = input_ids.roll(-1)
        self.require_ids("targets", targets)
        if len(targets) != len(input_ids):
            raise RequestError(f"{len(targets)} targets for {len(input_ids)} input_ids: give one for each")
        nll_T, learnt_LRD = yield Call("forward", input_ids, targets, bool(learn))
        return {"nll": nll_T.float(), "prime_change": learnt_LRD.sum(-1).float()}

    def require_ids(self, name: str, ids: Any) -> None:
        if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
            raise RequestError(f"{name} must be int64 [tokens], not {described(ids)}")
        require_values(name, ids)
        if not len(ids) or len(ids) % self.chunk or len(ids) > self.seq_len:
            raise RequestError(
                f"{name} has {len(ids)} tokens: the model takes multiples of {self.chunk}, its chunk, up to "
                f"{self.seq_len}. Cut or pad the text"
            )
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise RequestError(f"{name} has token {wrong}: the vocabulary is 0 .. {self.vocab_size - 1}")


def layer_arguments(config: ConfigReader) -> tuple[dict[str, Any], int, int]:
    """The arguments of every layer, how many the prefix has, and how many the suffix."""
    for key in NEEDED:
        if not config.flag(key, default=True):
            raise config.error(key, "false is not supported")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads or (hidden_size // num_heads) % 2:
        raise config.error(
            "num_attention_heads", f"{num_heads} do not divide hidden_size {hidden_size} into pairs"
        )
    layers, suffix = config.integer("num_hidden_layers"), config.integer("suffix_len")
    if suffix > layers:
        raise config.error("suffix_len", f"{suffix} of num_hidden_layers, {layers}")
    layer = {
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "sliding_window": config.integer("sliding_window_size"),
        "rms_norm_eps": config.number("rms_norm_eps"),
    }
    return layer, layers - suffix, suffix


def optimizer_arguments(config: ConfigReader) -> tuple[float, float]:
    """Step size and the largest norm of a gradient."""
    config.choice("optimizer_type", {"sgd": None}, default="sgd")
    config.refuse(("momentum", "nesterov", "weight_decay"), neutral=(None, False, 0, 0.0))
    return config.number("lr", 1.0), config.number("clip_gradient", 1.0)


def weight_map(prefix: int, suffix: int, layer: dict[str, Any]) -> WeightMap:
    """Names of the flattened JAX paths, block by block: stacked_blocks.py takes the stacks apart."""
    hidden_size, intermediate_size = layer["hidden_size"], layer["intermediate_size"]
    names = {
        f"{MODEL}wte.weight": "embed_tokens.embedding.weight",
        f"{MODEL}ln_f.weight": "suffix.ln_f.weight",
    }
    packed: dict[str, dict[str, int]] = {"prime": {}}
    for i in range(prefix + suffix):
        theirs, ours = f"{BLOCKS}{i}.", f"layers.{i}." if i < prefix else f"suffix.layers.{i - prefix}."
        attention, ffn = "seq_modeling_block.", "feed_forward."
        for norm in ("seq_norm", "seq_post_norm", "ffn_norm", "ffn_post_norm"):
            names[f"{theirs}{norm}.weight"] = f"{ours}{norm}.weight"
        for norm in ("q_norm", "k_norm"):
            names[f"{theirs}{attention}{norm}.weight"] = f"{ours}{attention}{norm}.weight"
        names[f"{theirs}{attention}wo.weight"] = f"{ours}{attention}o_proj.linear.weight"
        names[f"{theirs}{ffn}w2.weight"] = f"{ours}{ffn}down_proj.linear.weight"
        packed[f"{ours}{attention}qkv_proj.linear.weight"] = {
            f"{theirs}{attention}{part}.weight": hidden_size for part in ("wq", "wk", "wv")
        }
        packed[f"{ours}{ffn}gate_up_proj.linear.weight"] = {
            f"{theirs}{ffn}{part}.weight": intermediate_size for part in ("w1", "w3")
        }
    for i in range(suffix):
        theirs, ours = f"{PRIME}{i}.", f"suffix.layers.{i}."
        for norm in ("ffn_prime_norm", "ffn_prime_post_norm"):
            names[f"{theirs}{norm}.weight"] = f"{ours}{norm}.weight"
        packed["prime"] |= {
            f"{theirs}{FEED_FORWARD_PRIME}{part}.weight": intermediate_size for part in ("w1", "w3", "w2")
        }
    ignored = tuple(f"**{state}" for state in ("kv_cache_index", "chunk_index", "step_index"))
    stacks = StackedBlocks((BLOCKS, PRIME), as_they_are=(f"{FEED_FORWARD_PRIME}w2.weight",))
    return WeightMap(names, packed, ignored, folding=stacks)
