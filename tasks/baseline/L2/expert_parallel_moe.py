"""Sparse mixture-of-experts block whose experts the ranks of a group share out.

    r = x Wg^T
    w, e = the k largest of softmax(r), renormalised
    y = sum_j w[j] expert_e[j](x)

T tokens of a rank, D hidden, F intermediate, E experts, of which rank d has [d E/R, (d + 1) E/R). Wg [E, D]
is the same on all ranks; w1 [E/R, 2F, D] (gate and up projection, gate first) and w2 [E/R, D, F] are the
rank's own experts. Tokens go to the ranks of their experts and come back (L1/all_to_all): what a rank's
experts make of a token is added up and rounded there, and added up over ranks here. r is rounded to the dtype
of x; the softmax is float32; roundings inside an expert are those of L2/fused_experts. Two experts whose
logits differ by less than a rounding may be exchanged; inputs that are judged choose clearly.
Mirrors the forward of vllm.model_executor.models.mixtral.MixtralMoE with expert parallelism; its weights come
as those of vllm.model_executor.layers.fused_moe.fused_moe.fused_experts.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion
from fastkernels.nn.routing import Router

from ..L1.all_to_all import EPCombine, EPDispatch
from ..L1.linear import Linear
from ..L1.moe_routing import TopKSoftmax


class ExpertParallelMoE(Router):
    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        renormalize: bool = True,
        use_fp8: bool = False,
    ) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, num_experts)
        self.topk = TopKSoftmax(top_k, renormalize)
        self.dispatch = EPDispatch(num_experts, use_fp8)
        self.combine = EPCombine(num_experts)
        self.fuses = Fusion(self, "dispatch", "combine")

    def forward(self, hidden_states: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        """[T, D], [E/R, 2F, D], [E/R, D, F] -> [T, D]"""
        weights, ids = self.topk(self.gate(hidden_states))
        if self.fuses and not hidden_states.is_meta:
            sizes = self.dispatch.num_experts, self.dispatch.use_fp8
            return kernels.expert_parallel(hidden_states, weights, ids, w1, w2, *sizes)
        rows, own_ids, own_weights = self.dispatch(hidden_states, ids, weights)
        return self.combine(kernels.local_experts(rows, own_ids, own_weights, w1, w2), ids, own_ids)
