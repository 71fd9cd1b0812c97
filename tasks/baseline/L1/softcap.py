"""Logits kept within a bound, smoothly.

    y = cap tanh(x / cap)

T tokens, V vocabulary; any shape. Computed in at least float32; y has the dtype of x.
Mirrors the soft cap of vllm.model_executor.layers.logits_processor.LogitsProcessor.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class Softcap(nn.Module):
    def __init__(self, soft_cap: float) -> None:
        super().__init__()
        self.soft_cap = soft_cap

    def forward(self, logits: Tensor) -> Tensor:
        """[T, V] -> [T, V]"""
        return kernels.softcap(logits, self.soft_cap)
