"""The last layers of a decoder that learns while it reads, over one chunk: the loss of each token, and its
gradient by the layers' prime weights.

    a = h + rms_norm(attention(rms_norm(h; w_in)); w_behind)
    p = a + rms_norm(prime_mlp(rms_norm(a; w_prime), W_l); w_prime_behind)
    y = p + rms_norm(mlp(rms_norm(p; w_ffn)); w_ffn_behind)           of each layer l
    nll = cross_entropy(rms_norm(y; w_f) E^T, targets)
    g_l = d mean(nll) / d W_l                   through all layers; earlier chunks' keys are constants

C tokens of a chunk, the last of the S whose keys and values the caches hold, L layers, D hidden, F
intermediate, H heads, K head size, V vocabulary, W_l [3F, D]. Weights are in the dtype of h; nll and g are at
least float32. A layer keeps the inputs of its norms and halves, and computes what is inside its feed-forward
blocks again. The gradient ends at the first layer's prime weights: nothing below them learns.
Mirrors the suffix of ttt.model.transformer.MetaModel.loss_for_sequence and jax.value_and_grad of its loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..L1.confidence import TokenConfidence
from ..L1.cross_entropy import CrossEntropy
from ..L1.linear import Linear
from ..L1.linear_grad import LinearInputGrad
from ..L1.rms_norm import RMSNorm
from ..L1.rms_norm_grad import RMSNormGrad
from ..L2.gated_mlp import GatedMLP
from ..L2.gated_mlp_grad import GatedMLPGrad
from ..L2.prime_mlp import PrimeMLP, PrimeMLPGrad
from ..L2.ttt_attention import TTTAttention, TTTAttentionGrad


class Kept(NamedTuple):
    """Of a layer's forward: h and what is behind each half's first norm, and before its last. [C, D] each."""

    hidden_states: Tensor
    attention: tuple[Tensor, ...]
    attended: Tensor
    prime_input: Tensor
    normed_prime: Tensor
    prime_output: Tensor
    ffn_input: Tensor
    normed_ffn: Tensor
    ffn_output: Tensor


class TTTSuffix(nn.Module):
    def __init__(
        self,
        num_layers: int,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        head_dim: int,
        sliding_window: int,
        rms_norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        attention = (num_heads, head_dim, sliding_window, rms_norm_eps)
        self.layers = nn.ModuleList(
            SuffixLayer(hidden_size, intermediate_size, *attention) for _ in range(num_layers)
        )
        self.ln_f = RMSNorm(hidden_size, rms_norm_eps)
        self.lm_head = Linear(hidden_size, vocab_size)
        self.confidence = TokenConfidence(vocab_size)
        self.cross_entropy = CrossEntropy(vocab_size)
        self.norm_grad = RMSNormGrad(rms_norm_eps)
        self.head_grad = LinearInputGrad(hidden_size, vocab_size)

    def forward(
        self,
        hidden_states: Tensor,
        targets: Tensor,
        prime: Tensor,
        rotary_emb: Tensor,
        key_caches: Tensor,
        value_caches: Tensor,
        learn: bool = True,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """hidden_states [C, D], targets int64 [C], prime [L, 3F, D], rotary_emb [C, K], caches [S, L, H, K],
        of which the last C are written -> nll [C], or where it learns (nll, g [L, 3F, D])"""
        h, kept = hidden_states, []
        for layer, weight, *caches in zip(
            self.layers, prime, key_caches.unbind(1), value_caches.unbind(1), strict=True
        ):
            h, of_layer = layer(h, weight, rotary_emb, *caches)
            kept.append(of_layer)
        logits_CV = self.lm_head(self.ln_f(h))
        if not learn:
            return -self.confidence(logits_CV, targets)
        nll_C, logits_grad_CV = self.cross_entropy(logits_CV, targets)
        grad_CD = self.norm_grad(self.head_grad(logits_grad_CV, self.lm_head.weight), h, self.ln_f.weight)
        grads = []
        for i in reversed(range(len(prime))):
            caches = (key_caches[:, i], value_caches[:, i])
            grad_CD, of_prime = self.layers[i].grad(grad_CD, kept[i], prime[i], rotary_emb, *caches, i > 0)
            grads.append(of_prime)
        return nll_C, torch.stack(grads[::-1])


class SuffixLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        head_dim: int,
        sliding_window: int,
        rms_norm_eps: float,
    ) -> None:
        super().__init__()
        self.seq_norm, self.seq_post_norm, self.ffn_prime_norm, self.ffn_prime_post_norm, self.ffn_norm, \
            self.ffn_post_norm = (RMSNorm(hidden_size, rms_norm_eps) for _ in range(6))  # fmt: skip
        attention = (num_heads, head_dim, sliding_window, rms_norm_eps)
        self.seq_modeling_block = TTTAttention(hidden_size, *attention)
        self.feed_forward_prime = PrimeMLP(hidden_size, intermediate_size)
        self.feed_forward = GatedMLP(hidden_size, intermediate_size)
        self.norm_grad = RMSNormGrad(rms_norm_eps)
        self.attention_grad = TTTAttentionGrad(hidden_size, *attention)
        self.prime_grad = PrimeMLPGrad(hidden_size, intermediate_size)
        self.ffn_grad = GatedMLPGrad(hidden_size, intermediate_size)

    def forward(
        self, h: Tensor, prime: Tensor, rotary_emb: Tensor, key_cache: Tensor, value_cache: Tensor
    ) -> tuple[Tensor, Kept]:
        o, *attention = self.seq_modeling_block(self.seq_norm(h), rotary_emb, key_cache, value_cache)
        a = h + self.seq_post_norm(o)
        normed_a = self.ffn_prime_norm(a)
        m = self.feed_forward_prime(normed_a, prime)
        p = a + self.ffn_prime_post_norm(m)
        normed_p = self.ffn_norm(p)
        f = self.feed_forward(normed_p)
        kept = Kept(h, tuple(attention), o, a, normed_a, m, p, normed_p, f)
        return p + self.ffn_post_norm(f), kept

    def grad(
        self,
        dy: Tensor,
        kept: Kept,
        prime: Tensor,
        rotary_emb: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        goes_on: bool,
    ) -> tuple[Tensor, Tensor]:
        """(dh, the gradient of the prime weights) for dy [C, D]. goes_on: whether a layer before this one
        learns; without it dh is not needed, and dy is returned in its place."""
        ffn, attn = self.feed_forward, self.seq_modeling_block
        df = self.norm_grad(dy, kept.ffn_output, self.ffn_post_norm.weight)
        weights = (ffn.gate_up_proj.linear.weight, ffn.down_proj.linear.weight)
        df = self.ffn_grad(df, kept.normed_ffn, *weights)
        dp = self.norm_grad(df, kept.ffn_input, self.ffn_norm.weight, dy)

        dm = self.norm_grad(dp, kept.prime_output, self.ffn_prime_post_norm.weight)
        dm, prime_grad = self.prime_grad(dm, kept.normed_prime, prime)
        if not goes_on:
            return dy, prime_grad
        da = self.norm_grad(dm, kept.prime_input, self.ffn_prime_norm.weight, dp)

        do = self.norm_grad(da, kept.attended, self.seq_post_norm.weight)
        weights = (
            attn.qkv_proj.linear.weight,
            attn.q_norm.weight,
            attn.k_norm.weight,
            attn.o_proj.linear.weight,
        )
        do = self.attention_grad(do, *kept.attention, rotary_emb, key_cache, value_cache, *weights)
        return self.norm_grad(do, kept.hidden_states, self.seq_norm.weight, da), prime_grad
