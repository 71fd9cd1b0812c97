"""The gradient of a feed-forward block with a gate by its input.

    [a | b] = x Wgu^T                                     computed again
    dh = dy Wd,  dx = glu_grad(dh, [a | b]) Wgu

T tokens, D hidden, F intermediate; Wgu [2F, D], gate first, Wd [D, F], neither of them learnt. Rounded to the
dtype of x after each product and the gate.
Mirrors the backward of liger_kernel.transformers.swiglu.LigerSwiGLUMLP, without its weights' gradients.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels

from ..L1.glu_grad import SiluAndMulGrad
from ..L1.linear_grad import LinearInputGrad


class GatedMLPGrad(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.down_grad = LinearInputGrad(intermediate_size, hidden_size)
        self.act_grad = SiluAndMulGrad()
        self.gate_up_grad = LinearInputGrad(hidden_size, 2 * intermediate_size)

    def forward(self, grad_output: Tensor, x: Tensor, gate_up_weight: Tensor, down_weight: Tensor) -> Tensor:
        """grad_output and x [T, D], weights [2F, D] and [D, F] -> [T, D]"""
        gate_up_T2F = kernels.linear(x, gate_up_weight)
        gate_up_grad_T2F = self.act_grad(self.down_grad(grad_output, down_weight), gate_up_T2F)
        return self.gate_up_grad(gate_up_grad_T2F, gate_up_weight)
