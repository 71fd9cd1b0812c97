"""The two halves of an RWKV-7 layer, time mix and channel mix. Both shift tokens, time mix keeps matrices.

    s_i[t] = x[t] + (x[t-1] - x[t]) mu_i                                    i = r, w, k, v, a, g

time mix:
    r = s_r W_r^T;  k = s_k W_k^T;  v = s_v W_v^T
    w = -exp(-1/2) sigmoid(tanh(s_w A_w^T) B_w^T + b_w)                     log decay
    a = sigmoid(s_a A_a^T B_a^T + b_a);  g = sigmoid(s_g A_g^T) B_g^T
    v = v + (v_first - v) sigmoid(s_v A_v^T B_v^T + b_v)                    first layer: v_first = v
    kk = (k k_k) / |k k_k| of a head;  k = k (1 + (a - 1) k_a)
    o[t] = S[t]^T r[t],  S[t] = diag(exp(w[t])) S[t-1] - (kk[t] a[t]) (kk[t]^T S[t-1]) + k[t] v[t]^T
    y = ((group_norm(o) + (sum_c r k r_k) v) g) W_o^T                       the sum over a head
channel mix:
    y = relu(s_k W_key^T)^2 W_value^T

T tokens, D hidden, H heads of K = D / H. kk takes k as it was projected; the norm has H groups and K times
the epsilon of the model. v_first is the first layer's v of every token, made anew in each forward. x[t-1] of
a request's first token is zero. The ambient step says which rows the tokens belong to and where their states
lie: its first `num_decodes` rows have one token each and take the update kernels, the others those of chunks.
States are float32 at least; the rest is rounded to the dtype of x after each line, where several lines are
not one kernel.
Mirrors fla.layers.rwkv7.RWKV7Attention and fla.models.rwkv7.modeling_rwkv7.RWKV7FeedForward.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.cache import CacheOwner, State
from fastkernels.nn.context import by_phase, step
from fastkernels.nn.fusion import Fusion

from ..L1.activation import ReLUSquaredActivation, Sigmoid, Tanh
from ..L1.group_norm import GroupNorm
from ..L1.l2_norm import L2Norm
from ..L1.linear import Linear
from ..L1.linear_of_parts import LinearOfParts
from ..L1.rwkv7 import ChunkRWKV7, RecurrentRWKV7
from ..L1.token_shift import TokenShift, TokenShiftUpdate
from .parallel_linear import ColumnParallelLinear, RowParallelLinear

STEEPEST = -math.exp(-0.5)  # of log decays
MIXES = 6  # of time mix
# A step's kernel reads the low-rank weights anew for each row: with more rows they are products of all. Where
# one overtakes the other has not been measured.
MOST_ROWS = 32


class RWKV7Heads(CacheOwner):
    """What time mix keeps of each request, and what it does between its two large products."""

    entries: ClassVar[tuple[str, ...]] = ("shift", "forward")
    state: Tensor
    shift_state: Tensor

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        decay_low_rank_dim: int,
        gate_low_rank_dim: int,
        a_low_rank_dim: int,
        v_low_rank_dim: int,
        norm_eps: float = 1e-5,
        is_first: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = hidden_size // head_dim, head_dim
        d, v_rank = hidden_size, 0 if is_first else v_low_rank_dim
        self.part_sizes = [d, decay_low_rank_dim, d, d + v_rank, a_low_rank_dim, gate_low_rank_dim]
        self.sizes = [*self.part_sizes[:3], d, v_rank, *self.part_sizes[4:]]
        shapes = (("shift_state", (d,)), ("state", (self.num_heads, head_dim, head_dim)))
        self.cache = State(shapes)
        self.x_x = _parameter(MIXES, d)
        self.token_shift, self.token_shift_update = TokenShift(MIXES), TokenShiftUpdate(MIXES)
        self.tanh, self.sigmoid = Tanh(), Sigmoid()
        self.w_lora = Linear(decay_low_rank_dim, d, bias=True)
        self.a_lora = Linear(a_low_rank_dim, d, bias=True)
        self.v_lora = None if is_first else Linear(v_low_rank_dim, d, bias=True)
        self.g_lora = Linear(gate_low_rank_dim, d)
        self.k_k, self.k_a, self.r_k = _parameter(d), _parameter(d), _parameter(self.num_heads, head_dim)
        self.l2_norm = L2Norm()
        self.chunk, self.recurrent = ChunkRWKV7(), RecurrentRWKV7()
        self.g_norm = GroupNorm(self.num_heads, d, head_dim * norm_eps)
        loras = [name for name in ("w_lora", "a_lora", "v_lora", "g_lora") if getattr(self, name) is not None]
        self.fuses = Fusion(self, "tanh", "sigmoid", *loras, "l2_norm", "recurrent", "g_norm")

    def shift(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, 6, D], the mixes of each token with the one before it."""
        others = (self.x_x, self.shift_state)
        return by_phase(self.token_shift_update, self.token_shift, (hidden_states,), others)

    def forward(self, projected: Tensor, v_first: Tensor | None) -> Tensor:
        """projected [T, N]: r, low w, k, v, low v, low a, low g side by side, v_first [T, D] -> [T, D].
        Advances the states of the step's rows."""
        fuses = self.fuses and not projected.is_meta
        if fuses and step().max_query_len == 0 and len(projected) <= MOST_ROWS:
            return self._stepped(projected, v_first)
        r, w, k, v, low_v, a, g = projected.split(self.sizes, -1)
        w, a = self.w_lora(self.tanh(w)), self.a_lora(a)
        g = self.g_lora(self.sigmoid(g))
        gate = None if self.v_lora is None else self.v_lora(low_v)
        if fuses:
            w, k, v, kk, a = kernels.rwkv7_inputs(
                k, v, w, a, gate, v_first, self.k_k, self.k_a, self.num_heads
            )
        else:
            w, a = STEEPEST * self.sigmoid(w), self.sigmoid(a)
            if gate is not None and v_first is not None:
                v = v + (v_first - v) * self.sigmoid(gate)
            kk = self.l2_norm(self._by_head(k * self.k_k)).flatten(1)
            k = k * (1 + (a - 1) * self.k_a)
        tokens = tuple(self._by_head(x) for x in (r, w, k, v, kk, a))
        o = by_phase(self.recurrent, self.chunk, tokens, (self.state,)).flatten(1)
        if fuses:
            norm = (self.g_norm.weight, self.g_norm.bias, self.g_norm.eps)
            return kernels.rwkv7_output(o, r, k, v, g, self.r_k, *norm)
        own = (self._by_head(r * k) * self.r_k).sum(-1, keepdim=True) * self._by_head(v)
        return (self.g_norm(o[:, None, None])[:, 0, 0] + own.flatten(1)) * g

    def _stepped(self, projected: Tensor, v_first: Tensor | None) -> Tensor:
        """All of it in one kernel, for one token of each row."""
        of_biases = [lora for lora in (self.w_lora, self.a_lora, self.v_lora) if lora is not None]
        ups = [lora.weight for lora in (self.w_lora, self.a_lora, self.g_lora, *of_biases[2:])]
        biases = [lora.bias for lora in of_biases if lora.bias is not None]
        parameters = (self.k_k, self.k_a, self.r_k, self.g_norm.weight, self.g_norm.bias)
        where = (self.state, step().rows_B, self.g_norm.eps)
        return kernels.rwkv7_step(projected, v_first, ups, biases, *parameters, *where)

    def _by_head(self, x_TD: Tensor) -> Tensor:
        return x_TD.unflatten(-1, (self.num_heads, self.head_dim))


class RWKV7Attention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        decay_low_rank_dim: int,
        gate_low_rank_dim: int,
        a_low_rank_dim: int,
        v_low_rank_dim: int,
        norm_eps: float = 1e-5,
        is_first: bool = False,
    ) -> None:
        """is_first: of the first layer, whose v is v_first."""
        super().__init__()
        ranks = (decay_low_rank_dim, gate_low_rank_dim, a_low_rank_dim, v_low_rank_dim)
        self.heads = RWKV7Heads(hidden_size, head_dim, *ranks, norm_eps, is_first)
        self.in_proj = LinearOfParts(hidden_size, self.heads.part_sizes)
        self.o_proj = RowParallelLinear(hidden_size, hidden_size)

    def forward(self, hidden_states: Tensor, v_first: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden_states and v_first [T, D] -> (hidden_states, v_first); none is given to the first layer.
        Advances the states of the step's rows."""
        projected = self.in_proj(self.heads.shift(hidden_states))
        gated = self.heads(projected, v_first)
        first = projected.split(self.heads.sizes, -1)[3] if v_first is None else v_first
        return self.o_proj(gated), first


class RWKV7FeedForward(CacheOwner):
    shift_state: Tensor

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.cache = State((("shift_state", (hidden_size,)),))
        self.x_k = _parameter(hidden_size)
        self.token_shift, self.token_shift_update = TokenShift(1), TokenShiftUpdate(1)
        self.key = ColumnParallelLinear(hidden_size, intermediate_size)
        self.act_fn = ReLUSquaredActivation()
        self.value = RowParallelLinear(intermediate_size, hidden_size)
        self.fuses = Fusion(self, "key", "act_fn")

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] -> [T, D]. Advances the states of the step's rows."""
        others = (self.x_k, self.shift_state)
        mixed = by_phase(self.token_shift_update, self.token_shift, (x,), others)[:, 0]
        if self.fuses and not x.is_meta:
            return self.value(kernels.linear_activation(mixed, self.key.linear.weight, None, "relu2"))
        return self.value(self.act_fn(self.key(mixed)))


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)
