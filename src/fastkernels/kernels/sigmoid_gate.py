"""A branch times the sigmoid of a gate, alone or added to another branch.

    y = x sigmoid(gate)
    y = x sigmoid(gate) + residual

T rows · D row width; the gate has an element for each of x, or one for each row. In float32 (float64 stays
float64), rounded once to the dtype of x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled


def _reference(x_TD: Tensor, gate_TG: Tensor, residual_TD: Tensor | None) -> Tensor:
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    y = x_TD.to(wide) * torch.sigmoid(gate_TG.to(wide))
    if residual_TD is not None:
        y = y + residual_TD.to(wide)
    return y.to(x_TD.dtype).contiguous()


_sigmoid_gate = Kernel(
    "sigmoid_gate",
    "(Tensor x, Tensor gate, Tensor? residual) -> Tensor",
    _reference,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _reference, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
)


def sigmoid_gate(
    x_TD: Tensor, gate_TG: Tensor, residual_TD: Tensor | None = None, *, impl: str | None = None
) -> Tensor:
    """x sigmoid(gate), plus the residual where there is one: contiguous, in x's shape and dtype; any number
    of dimensions before the last. gate: x's shape, or with a last dimension of 1; residual: x's shape. All
    have x's dtype and may be strided views with a contiguous last dimension.

    Raises KernelError when `impl` cannot serve the call, ValueError for a gate of another shape.
    """
    if gate_TG.shape not in (x_TD.shape, (*x_TD.shape[:-1], 1)):
        raise ValueError(
            f"gate must be {list(x_TD.shape)} as x is, or have a last dimension of 1, not "
            f"{list(gate_TG.shape)}"
        )
    return _sigmoid_gate(x_TD, gate_TG, residual_TD, impl=impl)
