"""Gated feed-forward blocks of chosen experts, summed with their routing weights.

    u = act(x[t] W13[e, :F]^T) * (x[t] W13[e, F:]^T)        for each expert e = topk_ids[t, j] of token t
    y[t] = sum_j topk_weights[t, j] u W2[e]^T

T tokens, D hidden, E experts, F intermediate, k experts of a token. W13 [E, 2F, D] packs gate and up
projection of an expert, gate first; W2 is [E, D, F]. act: silu, in GeluExperts gelu_tanh. The weight
multiplies the output, never the input: the activation is not linear. Rounded to the dtype of hidden_states
after the first product, the activation and the weighted second product; the sum is taken in float32 and
rounded once. All of it is one kernel where all parts are the baseline's own and the rank has every expert;
else the first product and the activation where these are.

On several ranks (nn/partition) a rank has a slice of the F features of each expert or, where experts are
split, some experts whole, and zeros in the slots of others. y is the sum over the ranks, rounded before it is
added up.
Mirrors vllm.model_executor.layers.fused_moe.fused_moe.fused_experts, GeluExperts with activation="gelu_tanh".
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.kernels.glu import Activation
from fastkernels.nn.fusion import Fusion
from fastkernels.nn.partition import partition, split

from ..L1.all_reduce import AllReduce
from ..L1.glu import GeluAndMul, SiluAndMul
from ..L1.grouped_gemm import GroupedLinear
from ..L1.moe_permute import MoEAlign, MoESum


class FusedExperts(nn.Module):
    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        now, self.num_experts = partition(), num_experts
        whole = range(num_experts), range(intermediate_size)
        self.mine = now.share(num_experts, "experts") if now.splits_experts else whole[0]
        inner = whole[1] if now.splits_experts else now.share(intermediate_size, "features of an expert")
        self.align = MoEAlign(num_experts)
        self.w13 = GroupedLinear(len(self.mine), hidden_size, 2 * len(inner))
        self.act_fn: nn.Module = SiluAndMul()
        self.w2 = GroupedLinear(len(self.mine), len(inner), hidden_size)
        self.sum = MoESum()
        self.all_reduce = AllReduce() if now.is_split else None
        if now.splits_experts:
            split(self.w13.weight, 0, num_experts, [self.mine])
            split(self.w2.weight, 0, num_experts, [self.mine])
        else:
            up = range(intermediate_size + inner.start, intermediate_size + inner.stop)
            split(self.w13.weight, 1, 2 * intermediate_size, [inner, up])
            split(self.w2.weight, 2, intermediate_size, [inner])
        self.activation: Activation = "silu"
        self.fuses = Fusion(self, "w13", "act_fn")
        self.fuses_all = Fusion(self, "align", "w13", "act_fn", "w2", "sum")

    def forward(self, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """hidden_states [T, D], topk_weights [T, k] float32, topk_ids [T, k] int32 -> [T, D]"""
        if self.fuses_all and len(self.mine) == self.num_experts and not hidden_states.is_meta:
            weights = self.w13.weight, self.w2.weight
            summed = kernels.experts(hidden_states, topk_weights, topk_ids, *weights, self.activation)
            return summed if self.all_reduce is None else self.all_reduce(summed)
        if len(self.mine) < self.num_experts:
            # The rank's experts are the first ones: their slots lie together, ahead of all others.
            topk_ids = (topk_ids - self.mine.start) % self.num_experts
        order, starts = self.align(topk_ids)
        starts = starts[: len(self.mine) + 1]
        if self.fuses and not hidden_states.is_meta:
            active = kernels.grouped_linear_glu(
                hidden_states, self.w13.weight, order, starts, self.activation
            )
        else:
            active = self.act_fn(self.w13(hidden_states, order, starts))
        weighted = self.w2(active, order, starts, topk_weights.flatten())
        weighted = weighted.view(*topk_ids.shape, hidden_states.shape[-1])
        if len(self.mine) < self.num_experts:
            weighted = weighted.masked_fill((topk_ids >= len(self.mine))[..., None], 0)
        summed = self.sum(weighted)
        return summed if self.all_reduce is None else self.all_reduce(summed)


class GeluExperts(FusedExperts):
    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__(num_experts, hidden_size, intermediate_size)
        self.act_fn, self.activation = GeluAndMul("tanh"), "gelu_tanh"
        self.fuses = Fusion(self, "w13", "act_fn")
        self.fuses_all = Fusion(self, "align", "w13", "act_fn", "w2", "sum")
