"""The feed-forward half of a ConvNeXt V2 block: two linear layers with a response norm between them.

    o = residual + grn(gelu(x W1^T + b1)) W2^T + b2          grn: kernels/response_norm, without an activation

B images · Y, X rows and columns · C channels · F hidden channels; W1 [F, C], W2 [C, F]. Accumulates in at
least float32, rounds to the dtype of x; an implementation may round each step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.linear import linear
from fastkernels.kernels.response_norm import response_norm
from fastkernels.kernels.work import Tally


def _reference(
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
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    w1, b1, grn_weight, grn_bias, w2, b2 = (
        tensor.to(dtype) for tensor in (w1_FC, b1_F, grn_weight_F, grn_bias_F, w2_CF, b2_C)
    )
    hidden_BYXF = F.linear(x_BYXC.to(dtype), w1, b1)
    normed_BYXF = response_norm(hidden_BYXF, grn_weight, grn_bias, eps, "gelu", impl="reference")
    return (residual_BYXC.to(dtype) + F.linear(normed_BYXF, w2, b2)).to(x_BYXC.dtype)


def _parts(
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
    """A kernel each, as is chosen for this device."""
    hidden_BYXF = response_norm(linear(x_BYXC, w1_FC, b1_F), grn_weight_F, grn_bias_F, eps, "gelu")
    return linear(hidden_BYXF, w2_CF, b2_C) + residual_BYXC


def _work(tally: Tally, x_BYXC: Tensor, w1_FC: Tensor, *rest: object) -> None:
    tally.multiply(x_BYXC, 4 * x_BYXC.numel() * len(w1_FC))


_response_mlp = Kernel(
    "response_mlp",
    "(Tensor x, Tensor w1, Tensor b1, Tensor grn_weight, Tensor grn_bias, Tensor w2, Tensor b2, "
    "Tensor residual, float eps) -> Tensor",
    _reference,
    fake=lambda x_BYXC, *_: x_BYXC.new_empty(x_BYXC.shape),
    implementations=(
        Implementation("parts", _parts, devices=("cpu", "cuda")),
        Implementation("triton", f"{__name__}_triton"),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
    work=_work,
)


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
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Y, X, C], contiguous, in the dtype of x; all tensors have one dtype, x and residual one shape.

    Raises KernelError when `impl` cannot serve the call.
    """
    norm = (grn_weight_F, grn_bias_F)
    return _response_mlp(x_BYXC, w1_FC, b1_F, *norm, w2_CF, b2_C, residual_BYXC, eps, impl=impl)
