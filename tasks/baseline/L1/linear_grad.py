"""The gradients of a linear layer, y = x W^T.

    input     dx = dy W
    weight    dW = dy^T x

T tokens, x [T, K], W [N, K], y [T, N]. Products accumulate in at least float32. dx has the dtype of dy; dW
keeps float32, because small steps add up.
Mirrors the two products that jax.vjp makes of jax.lax.dot_general, and the backward of
torch.nn.functional.linear.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class LinearInputGrad(nn.Module):
    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size

    def forward(self, grad_output: Tensor, weight: Tensor) -> Tensor:
        """[T, N], [N, K] -> [T, K]"""
        return kernels.linear(grad_output, weight.t())


class LinearWeightGrad(nn.Module):
    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.input_size, self.output_size = input_size, output_size

    def forward(self, grad_output: Tensor, input: Tensor) -> Tensor:
        """[T, N], [T, K] -> [N, K] at least float32"""
        return kernels.linear_float32(grad_output.t(), input.t())
