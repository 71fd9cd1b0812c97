"""A branch times the sigmoid of a gate, alone or added to another branch.

    y = x sigmoid(gate) (+ residual)

T tokens, D features; any leading shape. The gate has an element for each of x, or one for each token.
Computed in at least float32, rounded once to the dtype of x.
Mirrors torch.nn.Sigmoid of a gate and the product and the sum that follow it in
vllm.model_executor.models.qwen3_next.Qwen3NextAttention and Qwen3NextSparseMoeBlock.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class SigmoidGate(nn.Module):
    def forward(self, x: Tensor, gate: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [..., D], gate [..., D] or [..., 1], residual [..., D] -> [..., D]"""
        return kernels.sigmoid_gate(x, gate, residual)
