"""What the ranks of a group send each other: equal parts, or tokens to the experts that they choose.

    AllToAll        y[r] = x[r][rank]       x[r][0], x[r][1], ... are equal parts of the rows of x[r]

    EPDispatch      x'[r T + t], ids'[r T + t], weights'[r T + t]
                        = x[r][t], topk_idx[r][t] - d E/R, topk_weights[r][t]
                    on rank d, where it has the expert; else 0, -1 and 0

    EPCombine       y[t] = sum of x[d][rank T + t] over the ranks d that have an expert of token t

x[r] is what rank r brings. R ranks, T tokens of each, k experts of a token, D hidden, E experts, of which
rank d has [d E/R, (d + 1) E/R). Rows have fixed places, so that shapes do not depend on the routing; only
rows that are needed have to travel. EPDispatch hands values on as they are; with use_fp8 they travel as
float8 (e4m3), every 128 of them over their largest magnitude / 448. EPCombine adds in at least float32 and
rounds to the dtype of x; rows that no expert made do not count.
Mirrors torch.distributed._functional_collectives.all_to_all_single, deep_ep.Buffer.dispatch and
deep_ep.Buffer.combine.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class AllToAll(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        """[R P, D] -> [R P, D]"""
        return kernels.all_to_all(input)


class EPDispatch(nn.Module):
    def __init__(self, num_experts: int, use_fp8: bool = False) -> None:
        super().__init__()
        self.num_experts, self.use_fp8 = num_experts, use_fp8

    def forward(self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, D], [T, k] int32 in [-1, E), [T, k] float32 -> [R T, D], [R T, k] int32, [R T, k] float32"""
        return kernels.ep_dispatch(x, topk_idx, topk_weights, self.num_experts, self.use_fp8)


class EPCombine(nn.Module):
    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts

    def forward(self, x: Tensor, topk_idx: Tensor, recv_topk_idx: Tensor | None = None) -> Tensor:
        """[R T, D], [T, k] int32 as it was dispatched -> [T, D]; recv_topk_idx: EPDispatch's, or None"""
        return kernels.ep_combine(x, topk_idx, self.num_experts, recv_topk_idx)
