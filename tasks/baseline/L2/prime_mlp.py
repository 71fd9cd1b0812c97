"""A feed-forward block whose weights are its state, and its gradient by input and weights.

    [a | b] = x Wgu^T,  h = silu(a) * b,  y = h Wd
    dh = dy Wd^T,  g = glu_grad(dh, [a | b])
    dx = g Wgu,  dW = [g^T x; h^T dy]                     [a | b] and h are computed again

T tokens, D hidden, F intermediate. The state W [3F, D] is [Wgu; Wd]: gate, up, and Wd [F, D] with inputs as
rows. It is given in the dtype of x, whatever it is kept in; dW is at least float32. Rounded to the dtype of x
after each other product and the gate.
Mirrors the feed_forward_prime of a block of ttt.model.transformer.MetaModel, and jax.vjp of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastkernels import kernels

from ..L1.glu import SiluAndMul
from ..L1.glu_grad import SiluAndMulGrad
from ..L1.linear_grad import LinearInputGrad, LinearWeightGrad


class PrimeMLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_size = 2 * intermediate_size
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [T, D], weight [3F, D] -> [T, D]"""
        gate_up_T2F = kernels.linear(x, weight[: self.gate_up_size])
        return kernels.linear(self.act_fn(gate_up_T2F), weight[self.gate_up_size :].t())


class PrimeMLPGrad(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_size = 2 * intermediate_size
        self.act_fn, self.act_grad = SiluAndMul(), SiluAndMulGrad()
        self.input_grad = LinearInputGrad(hidden_size, self.gate_up_size)
        self.gate_up_grad = LinearWeightGrad(hidden_size, self.gate_up_size)
        self.down_grad = LinearWeightGrad(hidden_size, intermediate_size)

    def forward(self, grad_output: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """grad_output and x [T, D], weight [3F, D] -> (dx [T, D], dW [3F, D] at least float32)"""
        gate_up, down = weight[: self.gate_up_size], weight[self.gate_up_size :]
        gate_up_T2F = kernels.linear(x, gate_up)
        gate_up_grad_T2F = self.act_grad(kernels.linear(grad_output, down), gate_up_T2F)
        rows = (
            self.gate_up_grad(gate_up_grad_T2F, x),
            self.down_grad(self.act_fn(gate_up_T2F), grad_output),
        )
        return self.input_grad(gate_up_grad_T2F, gate_up), torch.cat(rows)
