"""Routing of tokens to experts by the largest of a softmax.

    p = softmax(router_logits)
    topk_ids = the k largest of router_logits, falling; equal ones: the lower id first
    topk_weights = p[topk_ids],  divided by their sum with `renormalize`

T tokens, E experts. The softmax goes over all E experts, in at least float32; weights are float32 whatever
the dtype of the logits is, ids int32. Renormalising differs from not doing so: the other experts have a share
of p.
Mirrors vllm.model_executor.layers.fused_moe.layer.FusedMoE.select_experts (its topk_softmax kernel).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class TopKSoftmax(nn.Module):
    def __init__(self, top_k: int, renormalize: bool = True) -> None:
        super().__init__()
        self.top_k, self.renormalize = top_k, renormalize

    def forward(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        """[T, E] -> (weights [T, k] float32, ids [T, k] int32)"""
        return kernels.topk_softmax(router_logits, self.top_k, self.renormalize)
