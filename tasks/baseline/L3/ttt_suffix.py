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

from typing import Any, NamedTuple, cast

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

NORMS = (
    "seq_norm", "seq_post_norm", "ffn_prime_norm", "ffn_prime_post_norm", "ffn_norm", "ffn_post_norm",
)  # fmt: skip


class Kept(NamedTuple):
    """Of a layer's forward, [C, D] each but for what its attention keeps."""

    h: Tensor
    attention: tuple[Tensor, ...]
    o: Tensor  # of attention
    a: Tensor
    normed_a: Tensor
    m: Tensor  # of the prime block
    p: Tensor
    normed_p: Tensor
    f: Tensor  # of the feed-forward block


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
        attention = (hidden_size, num_heads, head_dim, sliding_window, rms_norm_eps)
        mlp = (hidden_size, intermediate_size)

        def layer() -> nn.ModuleDict:
            norms = {name: RMSNorm(hidden_size, rms_norm_eps) for name in NORMS}
            halves = {"seq_modeling_block": TTTAttention(*attention), "feed_forward": GatedMLP(*mlp)}
            return nn.ModuleDict(norms | halves)

        self.layers = nn.ModuleList(layer() for _ in range(num_layers))
        self.prime_mlp = PrimeMLP(*mlp)
        self.ln_f = RMSNorm(hidden_size, rms_norm_eps)
        self.lm_head = Linear(hidden_size, vocab_size)
        self.confidence = TokenConfidence(vocab_size)
        self.cross_entropy = CrossEntropy(vocab_size)
        self.head_grad = LinearInputGrad(hidden_size, vocab_size)
        self.norm_grad = RMSNormGrad(rms_norm_eps)
        self.attention_grad = TTTAttentionGrad(*attention)
        self.prime_grad, self.ffn_grad = PrimeMLPGrad(*mlp), GatedMLPGrad(*mlp)

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
        h, kept, layers = hidden_states, [], range(len(prime))
        places = [(rotary_emb, key_caches[:, i], value_caches[:, i]) for i in layers]
        for i in layers:
            h, of_layer = self.advanced(i, h, prime[i], *places[i])
            kept.append(of_layer)
        logits_CV = self.lm_head(self.ln_f(h))
        if not learn:
            return -self.confidence(logits_CV, targets)
        nll_C, logits_grad_CV = self.cross_entropy(logits_CV, targets)
        dh = self.norm_grad(self.head_grad(logits_grad_CV, self.lm_head.weight), h, self.ln_f.weight)
        grads = []
        for i in reversed(layers):
            dh, of_prime = self.gradient(i, dh, kept[i], prime[i], *places[i])
            grads.append(of_prime)
        return nll_C, torch.stack(grads[::-1])

    def advanced(self, i: int, h: Tensor, prime: Tensor, *place: Tensor) -> tuple[Tensor, Kept]:
        """y of layer i, and what its gradient needs. place: rotations and caches."""
        layer = cast("nn.ModuleDict", self.layers[i])
        o, *attention = layer["seq_modeling_block"](layer["seq_norm"](h), *place)
        a = h + layer["seq_post_norm"](o)
        normed_a = layer["ffn_prime_norm"](a)
        m = self.prime_mlp(normed_a, prime)
        p = a + layer["ffn_prime_post_norm"](m)
        normed_p = layer["ffn_norm"](p)
        f = layer["feed_forward"](normed_p)
        kept = Kept(h, tuple(attention), o, a, normed_a, m, p, normed_p, f)
        return p + layer["ffn_post_norm"](f), kept

    def gradient(
        self, i: int, dy: Tensor, kept: Kept, prime: Tensor, *place: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(dh of layer i, the gradient of its prime weights); of the first layer, where nothing below learns,
        dy in the place of dh."""
        layer: Any = self.layers[i]
        ffn, attention = layer["feed_forward"], layer["seq_modeling_block"]

        df = self.norm_grad(dy, kept.f, layer["ffn_post_norm"].weight)
        weights = (ffn.gate_up_proj.linear.weight, ffn.down_proj.linear.weight)
        df = self.ffn_grad(df, kept.normed_p, *weights)
        dp = self.norm_grad(df, kept.p, layer["ffn_norm"].weight, dy)

        dm = self.norm_grad(dp, kept.m, layer["ffn_prime_post_norm"].weight)
        dm, of_prime = self.prime_grad(dm, kept.normed_a, prime)
        if i == 0:
            return dy, of_prime
        da = self.norm_grad(dm, kept.a, layer["ffn_prime_norm"].weight, dp)

        do = self.norm_grad(da, kept.o, layer["seq_post_norm"].weight)
        norms = (attention.q_norm.weight, attention.k_norm.weight)
        weights = (attention.qkv_proj.linear.weight, *norms, attention.o_proj.linear.weight)
        do = self.attention_grad(do, *kept.attention, *place, *weights)
        return self.norm_grad(do, kept.h, layer["seq_norm"].weight, da), of_prime
