"""response_mlp in Triton: two products with what lies between them in their epilogue and prologue.

    h = gelu(x W1^T + b1)        f[b, c] = 1 + grn_weight[c] n[b, c]
    o = residual + (f[b] h) W2^T + (b2 + W2 grn_bias)

The response norm is a factor of each image's channels, which the second product applies to what it loads, and
a bias, which goes through it once for all pixels: of the hidden map nothing is written but h.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import conv2d_activation_triton as product
from fastkernels.kernels import response_norm_triton as norm

ONCE = (1, 0, 1)  # stride, padding, groups of a filter of one place


def unsupported(
    kernel: str,
    x_BYXC: Tensor,
    w1_FC: Tensor,
    b1_F: Tensor,
    grn_weight_F: Tensor,
    grn_bias_F: Tensor,
    w2_CF: Tensor,
    b2_C: Tensor,
    residual_BYXC: Tensor,
    eps: float,
) -> str | None:
    if not x_BYXC.is_contiguous():
        return "needs a contiguous map"
    hidden = len(w1_FC)
    if hidden > norm.MOST_SQUARES:
        return f"serves up to {norm.MOST_SQUARES} hidden channels, not {hidden}"
    others = (b2_C, grn_weight_F, residual_BYXC)
    return product.unsupported(
        kernel, x_BYXC, w1_FC[:, None, None], b1_F, grn_bias_F, w2_CF, *ONCE, "gelu"
    ) or product.unsupported(kernel, x_BYXC, w1_FC[:, None, None], *others, *ONCE, "none")


def response_mlp(
    x_BYXC: Tensor,
    w1_FC: Tensor,
    b1_F: Tensor,
    grn_weight_F: Tensor,
    grn_bias_F: Tensor,
    w2_CF: Tensor,
    b2_C: Tensor,
    residual_BYXC: Tensor,
    eps: float,
) -> Tensor:
    if x_BYXC.numel() == 0:
        return torch.empty_like(x_BYXC)
    h_BYXF = product.conv2d_activation(x_BYXC, w1_FC[:, None, None], b1_F, None, None, *ONCE, "gelu")
    f_BF = norm.factors(h_BYXF, grn_weight_F, eps, "none").to(x_BYXC.dtype)
    bias_C = torch.addmv(b2_C, w2_CF, grn_bias_F)
    return product.conv2d_activation(h_BYXF, w2_CF[:, None, None], bias_C, f_BF, residual_BYXC, *ONCE, "none")
