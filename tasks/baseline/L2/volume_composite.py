"""Samples of rays added to what each ray has seen so far, front to back.

    alpha = 1 - exp(-exp(density) delta),  w = alpha (1 - A);  C += w sigmoid(colour),  A += w
    then, where A > 0.99:  C = C / A,  A = 1

R rays, K samples of each. raw has the logits of red, green and blue, then of the density; rgba is C, A. An
ended ray, whose A is 1, stays as it is. All is float32 (or float64).
Mirrors ngp.composite_kernel_nerf with the activations Logistic and Exponential.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels


class VolumeComposite(nn.Module):
    def forward(self, rgba: Tensor, raw: Tensor, deltas: Tensor) -> Tensor:
        """rgba [R, 4], raw [R, K, 4], deltas [R, K], 0 of places without a sample -> rgba [R, 4]"""
        return kernels.volume_composite(rgba, raw, deltas)
