"""Routing of tokens to experts by scores of their own, with a bias in the choice alone.

    topk_ids = the k largest of scores_for_choice, falling; equal ones: the lower id first
    topk_weights = s scores[topk_ids],  s = routed_scaling_factor, divided by their sum with `renormalize`

T tokens, E experts. scores_for_choice is the scores with the bias of each expert; weights are float32
whatever the dtype of the scores is, ids int32.
Mirrors vllm.model_executor.layers.fused_moe.fused_moe.grouped_topk (scoring_func sigmoid, one group of
experts) behind its sigmoid and its e_score_correction_bias.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class TopKScores(nn.Module):
    def __init__(self, top_k: int, renormalize: bool = True, routed_scaling_factor: float = 1.0) -> None:
        super().__init__()
        self.top_k, self.renormalize, self.scale = top_k, renormalize, routed_scaling_factor

    def forward(self, scores: Tensor, scores_for_choice: Tensor) -> tuple[Tensor, Tensor]:
        """scores and scores_for_choice [T, E] -> (weights [T, k] float32, ids [T, k] int32)"""
        return kernels.topk_scores(scores, scores_for_choice, self.top_k, self.renormalize, self.scale)
