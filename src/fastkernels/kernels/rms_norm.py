"""Root-mean-square normalisation, alone or after a residual add.

    s = x + residual                                      (add_rms_norm; rounded to the dtype of the residual)
    y = s / sqrt(mean(s^2) + eps) * weight                (rms_norm also without a weight)
    y = s / sqrt(mean(s^2) + eps) * (1 + weight)          (plus_one)

T tokens · D hidden. Mean, root and quotient in float32 (float64 stays float64); cast to the dtype of x
*before* the product with the weight; with `plus_one` behind it, because 1 + weight has digits that 16 bits do
not hold. `add_rms_norm` normalises the rounded sum, as vLLM's CUDA kernel does
(its compiled path normalises the unrounded one): the sum it returns is the sum it normalised. A residual may
be float32 beside 16-bit tensors.
Implementations that keep the product with the weight in float32 round once less; nothing else may differ.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS


def _reference_rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    x = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
    scale_T1 = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if weight_D is None:
        return (x * scale_T1).to(x_TD.dtype)
    if plus_one:
        return (x * scale_T1 * (1 + weight_D.to(x.dtype))).to(weight_D.dtype)
    return (x * scale_T1).to(weight_D.dtype) * weight_D


def _reference_add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    sum_TD = x_TD + residual_TD
    return _reference_rms_norm(sum_TD, weight_D, eps, plus_one), sum_TD


def _torch_rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False) -> Tensor:
    """Fused on CUDA, a few operators without Python between them on a CPU.

    It multiplies by the weight in float32 and rounds once.
    """
    if plus_one and weight_D is not None:
        wide = torch.promote_types(x_TD.dtype, torch.float32)
        return F.rms_norm(x_TD.to(wide), weight_D.shape, 1 + weight_D.to(wide), eps).to(x_TD.dtype)
    return F.rms_norm(x_TD, x_TD.shape[-1:], weight_D, eps)


def _torch_add_rms_norm(
    x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    sum_TD = x_TD + residual_TD
    if plus_one:
        return _torch_rms_norm(sum_TD, weight_D, eps, plus_one).to(x_TD.dtype), sum_TD
    if sum_TD.dtype == x_TD.dtype:  # a conversion of nothing takes a microsecond of a small call
        return F.rms_norm(sum_TD, weight_D.shape, weight_D, eps), sum_TD
    return F.rms_norm(sum_TD, weight_D.shape, weight_D.to(sum_TD.dtype), eps).to(x_TD.dtype), sum_TD


def _flashinfer_unsupported(
    x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False
) -> str | None:
    if weight_D is None:
        return "multiplies by a weight"
    if x_TD.ndim not in (2, 3):
        return f"serves 2 or 3 dimensions, not {x_TD.ndim}"
    return checks.not_half(x_TD, weight_D) or checks.not_aligned(x_TD, weight_D)


def _flashinfer(x_TD: Tensor, weight_D: Tensor, eps: float, plus_one: bool = False) -> Tensor:
    """It multiplies by the weight in float32 and rounds once.

    Its fused_add_rmsnorm is not offered as add_rms_norm: it normalises the sum before rounding it and writes
    over both arguments, so keeping the contract would take two copies and still give other values.
    """
    import flashinfer  # pyright: ignore[reportMissingImports]

    out_TD = x_TD.new_empty(x_TD.shape)
    if out_TD.numel():
        norm = flashinfer.gemma_rmsnorm if plus_one else flashinfer.rmsnorm
        norm(x_TD, weight_D, eps, out=out_TD)
    return out_TD


_rms_norm = Kernel(
    "rms_norm",
    "(Tensor x, Tensor? weight, float eps, bool plus_one=False) -> Tensor",
    _reference_rms_norm,
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation(
            "flashinfer",
            _flashinfer,
            requires=("flashinfer",),
            extra="gpu",
            unsupported=_flashinfer_unsupported,
        ),
        Implementation("inductor", compiled(_reference_rms_norm)),
        Implementation("torch", _torch_rms_norm, devices=("cpu", "cuda")),
        Implementation("vllm", f"{PROVIDERS}.vllm_rows", requires=("vllm",), extra="vllm"),
        Implementation("sgl_kernel", f"{PROVIDERS}.sgl_kernel", requires=("sgl_kernel",), extra="sgl-kernel"),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
        Implementation("quack", f"{PROVIDERS}.quack", requires=("quack",), extra="quack"),
        Implementation("liger", f"{PROVIDERS}.liger", requires=("liger_kernel",), extra="liger"),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)

_add_rms_norm = Kernel(
    "add_rms_norm",
    "(Tensor x, Tensor residual, Tensor weight, float eps, bool plus_one=False) -> (Tensor, Tensor)",
    _reference_add_rms_norm,
    fake=lambda x_TD, residual_TD, *_: (x_TD.new_empty(x_TD.shape), residual_TD.new_empty(x_TD.shape)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference_add_rms_norm)),
        Implementation("torch", _torch_add_rms_norm, devices=("cpu", "cuda")),
        Implementation("vllm", f"{PROVIDERS}.vllm_rows", requires=("vllm",), extra="vllm"),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
        Implementation("quack", f"{PROVIDERS}.quack", requires=("quack",), extra="quack"),
        Implementation("liger", f"{PROVIDERS}.liger", requires=("liger_kernel",), extra="liger"),
    ),
    rows=lambda x_TD, *_: x_TD.numel() // x_TD.shape[-1],
    adds_rows=True,
)


def rms_norm(
    x_TD: Tensor, weight_D: Tensor | None, eps: float, plus_one: bool = False, *, impl: str | None = None
) -> Tensor:
    """Normalise the last dimension of `x`, any number of dimensions before it.

    x may be a strided view (heads of a packed projection) with a contiguous last dimension and its other
    dimensions in memory order; the result is contiguous, of x's shape and dtype. weight has x's dtype, or is
    None. Raises KernelError when `impl` cannot serve the call.
    """
    return _rms_norm(x_TD, weight_D, eps, plus_one, impl=impl)


def add_rms_norm(
    x_TD: Tensor,
    residual_TD: Tensor,
    weight_D: Tensor,
    eps: float,
    plus_one: bool = False,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual), both new tensors: neither argument is written.

    x and weight share one dtype, x and residual one shape. residual, and so the sum, has their dtype or is
    float32.
    Raises KernelError when `impl` cannot serve the call.
    """
    return _add_rms_norm(x_TD, residual_TD, weight_D, eps, plus_one, impl=impl)
