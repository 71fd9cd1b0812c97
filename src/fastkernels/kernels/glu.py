"""Gated linear unit: the product of an activated gate and its input, both halves in one tensor.

    y[t, f] = act(x[t, f]) * x[t, F + f]

    silu(a) = a / (1 + exp(-a))      gelu(a) = a/2 (1 + erf(a / sqrt 2))
    gelu_tanh(a) = a/2 (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3)))      relu2(a) = max(a, 0)^2

T tokens · F hidden of the MLP. Gate first, as packed gate_up projections lie. Activation and product in
float32 (float64 stays float64), rounded once.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
    "relu2": lambda gate: F.relu(gate).square(),
}


def _reference(x_T2F: Tensor, activation: str) -> Tensor:
    gate_TF, up_TF = x_T2F.to(torch.promote_types(x_T2F.dtype, torch.float32)).chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate_TF) * up_TF).to(x_T2F.dtype)


def _torch_unsupported(x_T2F: Tensor, activation: str) -> str | None:
    if x_T2F.dtype not in (torch.float32, torch.float64):
        return "would round 16-bit activations before the product"
    return None


def _torch(x_T2F: Tensor, activation: str) -> Tensor:
    """In the dtype of x."""
    width = x_T2F.shape[-1] // 2
    return ACTIVATIONS[activation](x_T2F[..., :width]).mul_(x_T2F[..., width:])


def _flashinfer_unsupported(x_T2F: Tensor, activation: str) -> str | None:
    if activation == "relu2":
        return "has no relu2"
    if not x_T2F.is_contiguous():
        return "needs a contiguous tensor"
    # The kernel reads the second half in vectors too, and asserts nothing about it.
    if x_T2F.shape[-1] // 2 * x_T2F.element_size() % checks.VECTOR_BYTES:
        return f"needs halves of a multiple of {checks.VECTOR_BYTES} bytes"
    return checks.not_half(x_T2F) or checks.not_aligned(x_T2F)


def _flashinfer(x_T2F: Tensor, activation: str) -> Tensor:
    import flashinfer  # pyright: ignore[reportMissingImports]

    out_TF = x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2))
    if out_TF.numel():
        getattr(flashinfer, f"{activation}_and_mul")(x_T2F, out_TF)
    return out_TF


_glu = Kernel(
    "glu",
    "(Tensor x, str activation) -> Tensor",
    _reference,
    fake=lambda x_T2F, activation: x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation(
            "flashinfer",
            _flashinfer,
            requires=("flashinfer",),
            extra="gpu",
            unsupported=_flashinfer_unsupported,
        ),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
        Implementation("vllm", f"{PROVIDERS}.vllm_rows", requires=("vllm",), extra="vllm"),
        Implementation("sgl_kernel", f"{PROVIDERS}.sgl_kernel", requires=("sgl_kernel",), extra="sgl-kernel"),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
        Implementation("liger", f"{PROVIDERS}.liger", requires=("liger_kernel",), extra="liger"),
    ),
    rows=lambda x_T2F, *_: x_T2F.numel() // x_T2F.shape[-1],
)


def glu(x_T2F: Tensor, activation: Activation, *, impl: str | None = None) -> Tensor:
    """act(x[..., :F]) * x[..., F:], contiguous, in x's dtype; x's last dimension is contiguous and even.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(ACTIVATIONS)}")
    return _glu(x_T2F, activation, impl=impl)
