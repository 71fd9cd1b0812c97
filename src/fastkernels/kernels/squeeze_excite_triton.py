"""squeeze_excite in Triton: each layer a launch, a program for some outputs of one image.

Weights are small and stay in L2: images read them again.

B images · K inputs · N outputs of a layer.
"""

# Triton types a launch as a call of the device function, without launch options and with constexpr arguments.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.activated import activated
from fastkernels.kernels.launch import ceil_div, power_of_two, warps
from fastkernels.kernels.overlap import follow, overlap

TILE = 4096  # weights of a program
WIDEST = 4096  # inputs of a layer


def unsupported(kernel: str, mean_BC: Tensor, *layers: Tensor) -> str | None:
    if mean_BC.shape[-1] > WIDEST:
        return f"serves up to {WIDEST} channels"
    if not all(tensor.is_contiguous() for tensor in (mean_BC, *layers)):
        return "needs contiguous tensors"
    return checks.not_float32_compute(mean_BC, *layers)


@triton.jit
def _layer(x, weight, bias, y, K: tl.constexpr, N: tl.constexpr, NAME: tl.constexpr, INPUTS: tl.constexpr,
           OUTPUTS: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    image = tl.program_id(1)
    n, k = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.arange(0, INPUTS)
    follow(OVERLAPS)
    x_K = tl.load(x + image * K + k, mask=k < K, other=0.0).to(tl.float32)
    mask_NK = (n < N)[:, None] & (k < K)[None, :]
    weight_NK = tl.load(weight + n[:, None] * K + k[None, :], mask=mask_NK, other=0.0).to(tl.float32)
    sum_N = tl.sum(weight_NK * x_K[None, :], 1) + tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y + image * N + n, activated(sum_N, NAME).to(y.dtype.element_ty), mask=n < N)


def squeeze_excite(
    mean_BC: Tensor, reduce_RC: Tensor, bias_R: Tensor, expand_CR: Tensor, bias_C: Tensor
) -> Tensor:
    return _launch(_launch(mean_BC, reduce_RC, bias_R, "silu"), expand_CR, bias_C, "sigmoid")


def _launch(x_BK: Tensor, weight_NK: Tensor, bias_N: Tensor, name: str) -> Tensor:
    batch, (outputs, inputs) = x_BK.shape[0], weight_NK.shape
    y_BN = x_BK.new_empty(batch, outputs)
    if y_BN.numel() == 0:
        return y_BN
    width = power_of_two(inputs)
    rows = min(max(1, TILE // width), power_of_two(outputs))
    _layer[(ceil_div(outputs, rows), batch)](
        x_BK, weight_NK, bias_N, y_BN, K=inputs, N=outputs, NAME=name, INPUTS=width, OUTPUTS=rows,
        **warps(rows * width), **overlap(x_BK.device),
    )  # fmt: skip
    return y_BN
