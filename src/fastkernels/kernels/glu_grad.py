"""The gradient of a gated linear unit, silu(a) * b, by both halves.

    da = dy b s (1 + a (1 - s)),  s = 1 / (1 + exp(-a))
    db = dy a s

T tokens · F hidden of the MLP; x = [a | b], dx = [da | db]. In float32 (float64 stays float64), rounded once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(dy_TF: Tensor, x_T2F: Tensor) -> Tensor:
    dtype = torch.promote_types(dy_TF.dtype, torch.float32)
    dy, (gate, up) = dy_TF.to(dtype), x_T2F.to(dtype).chunk(2, dim=-1)
    share = gate.sigmoid()
    dx_T2F = torch.cat((dy * up * share * (1 + gate * (1 - share)), dy * gate * share), dim=-1)
    return dx_T2F.to(dy_TF.dtype)


def _torch(dy_TF: Tensor, x_T2F: Tensor) -> Tensor:
    """PyTorch's own backward of SiLU."""
    dtype = torch.promote_types(dy_TF.dtype, torch.float32)
    dy, (gate, up) = dy_TF.to(dtype), x_T2F.to(dtype).chunk(2, dim=-1)
    gate_grad = torch.ops.aten.silu_backward(dy * up, gate)
    return torch.cat((gate_grad, F.silu(gate).mul_(dy)), dim=-1).to(dy_TF.dtype)


_glu_grad = Kernel(
    "glu_grad",
    "(Tensor grad, Tensor x) -> Tensor",
    _reference,
    fake=lambda dy_TF, x_T2F: x_T2F.new_empty(x_T2F.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda dy_TF, _: dy_TF.numel() // dy_TF.shape[-1],
)


def glu_grad(dy_TF: Tensor, x_T2F: Tensor, *, impl: str | None = None) -> Tensor:
    """dx [T, 2F], contiguous; both tensors have one dtype and a contiguous last dimension. Raises KernelError
    when `impl` cannot serve the call."""
    return _glu_grad(dy_TF, x_T2F, impl=impl)
