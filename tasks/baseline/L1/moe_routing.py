"""Routing of tokens to experts by the largest of a softmax.

    p = softmax(router_logits)
    topk_ids = the k largest of router_logits, falling; equal ones: the lower id first
    topk_weights = p[topk_ids],  divided by their sum with `renormalize`

    scaled: p = softmax(logit_scale router_logits),  topk_weights = s[topk_ids] p[topk_ids] / their sum of p

T tokens, E experts. The softmax goes over all E experts, in at least float32; weights are float32 whatever
the dtype of the logits is, ids int32. Renormalising differs from not doing so: the other experts have a share
of p. s is a weight of each expert, which multiplies what is renormalised already.
Mirrors vllm.model_executor.layers.fused_moe.layer.FusedMoE.select_experts (its topk_softmax kernel); scaled
the choice at the end of transformers.models.gemma4.modeling_gemma4.Gemma4TextRouter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels


class TopKSoftmax(nn.Module):
    def __init__(self, top_k: int, renormalize: bool = True) -> None:
        super().__init__()
        self.top_k, self.renormalize = top_k, renormalize

    def forward(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        """[T, E] -> (weights [T, k] float32, ids [T, k] int32)"""
        return kernels.topk_softmax(router_logits, self.top_k, self.renormalize)


class ScaledTopKSoftmax(nn.Module):
    def __init__(self, num_experts: int, top_k: int, logit_scale: float) -> None:
        super().__init__()
        self.top_k, self.logit_scale = top_k, logit_scale
        self.per_expert_scale = nn.Parameter(torch.empty(num_experts), requires_grad=False)

    def forward(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        """[T, E] -> (weights [T, k] float32, ids [T, k] int32)"""
        return kernels.topk_softmax(router_logits, self.top_k, True, self.logit_scale, self.per_expert_scale)
