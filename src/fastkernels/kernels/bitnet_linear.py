"""A linear layer of ternary weights, packed two bits each, over activations of eight bits for each token.

    y[t, n] = (sum_k code[t, k] T[n, k]) / s[t] * omega[p(n)]

T tokens · K inputs · N outputs · R = N / 4 packed rows · P matrices packed together, of `sizes` outputs each.
code and s are made of x, and T is packed as in kernels/ternary.py; a packed weight is the packed matrices one
below the other, each of which has its own omega. The sum is one of whole numbers and exact; the rest is
in at least float32, rounded once to the dtype of x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastkernels.kernels import ternary
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.ternary import PER_BYTE
from fastkernels.kernels.work import Tally

# Below 2^24, and so exact in float32 in any order of adding.
MOST_INPUTS = 2**24 // 128
INT_MM_ROWS, INT_MM_MULTIPLE = 17, 8  # what torch._int_mm takes on CUDA: at least; of inputs and outputs


def parts(weight_RK: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """[N, K]: the matrices one below the other, unpacked."""
    packed = weight_RK.split([size // PER_BYTE for size in sizes])
    return torch.cat([ternary.unpack(part_RK, dtype) for part_RK in packed])


def _scaled(sums_TN: Tensor, scale_T1: Tensor, omega_P: Tensor, sizes: Sequence[int], like: Tensor) -> Tensor:
    dtype = torch.promote_types(like.dtype, torch.float32)
    each = torch.tensor(sizes, device=omega_P.device)
    omega_N = omega_P.to(dtype).repeat_interleave(each, output_size=sum(sizes))
    return (sums_TN.to(dtype) / scale_T1.to(dtype) * omega_N).to(like.dtype)


def _reference(x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]) -> Tensor:
    codes_TK, scale_T1 = ternary.quantised(x_TK)
    # In float64, so that no setting of PyTorch's products can round one.
    sums_TN = codes_TK.double() @ parts(weight_RK, sizes, torch.float64).T
    return _scaled(sums_TN, scale_T1, omega_P, sizes, x_TK)


def _torch(x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]) -> Tensor:
    """Whole numbers in float32."""
    codes_TK, scale_T1 = ternary.quantised(x_TK)
    sums_TN = codes_TK @ parts(weight_RK, sizes, torch.float32).T
    return _scaled(sums_TN, scale_T1, omega_P, sizes, x_TK)


def _int_mm_unsupported(x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]) -> str | None:
    rows, inputs = x_TK.numel() // max(1, x_TK.shape[-1]), x_TK.shape[-1]
    if rows < INT_MM_ROWS:
        return f"serves {INT_MM_ROWS} rows or more, not {rows}"
    if inputs % INT_MM_MULTIPLE or sum(sizes) % INT_MM_MULTIPLE:
        return f"needs inputs and outputs in multiples of {INT_MM_MULTIPLE}"
    return None


def _int_mm(x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]) -> Tensor:
    """PyTorch's product of int8 matrices, which cuBLAS computes on a GPU; a call unpacks the weight to a byte
    a value."""
    codes_TK, scale_T1 = ternary.quantised(x_TK)
    codes_TK = codes_TK.to(torch.int8)
    weight_KN = parts(weight_RK, sizes, torch.int8).T
    sums_TN = torch._int_mm(codes_TK.flatten(0, -2), weight_KN)  # pyright: ignore[reportPrivateImportUsage]
    return _scaled(sums_TN.view(*x_TK.shape[:-1], -1), scale_T1, omega_P, sizes, x_TK)


def _work(tally: Tally, x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int]) -> None:
    codes = torch.empty(0, dtype=torch.int8, device="meta")
    tally.multiply(codes, 2 * x_TK.numel() * sum(sizes))


_bitnet_linear = Kernel(
    "bitnet_linear",
    "(Tensor x, Tensor weight, Tensor omega, int[] sizes) -> Tensor",
    _reference,
    fake=lambda x_TK, weight_RK, omega_P, sizes: x_TK.new_empty((*x_TK.shape[:-1], sum(sizes))),
    implementations=(
        Implementation("gemv", f"{__name__}_gemv"),
        Implementation("triton", f"{__name__}_triton"),
        Implementation("int_mm", _int_mm, devices=("cpu", "cuda"), unsupported=_int_mm_unsupported),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda x_TK, *_: x_TK.numel() // x_TK.shape[-1],
    work=_work,
    other_way=ternary.other_way,
)


def bitnet_linear(
    x_TK: Tensor, weight_RK: Tensor, omega_P: Tensor, sizes: Sequence[int], *, impl: str | None = None
) -> Tensor:
    """[..., N] in x's dtype, contiguous; x [..., K], weight uint8 [N / 4, K], omega [P] in any float type.

    Raises KernelError when `impl` cannot serve the call, ValueError where the shapes do not fit each other or
    K is larger than MOST_INPUTS.
    """
    inputs = x_TK.shape[-1]
    if weight_RK.dtype != torch.uint8 or list(weight_RK.shape) != [sum(sizes) // PER_BYTE, inputs]:
        raise ValueError(
            f"weight {list(weight_RK.shape)} of {weight_RK.dtype}: {sum(sizes)} outputs of {inputs} inputs "
            f"are packed in uint8 {[sum(sizes) // PER_BYTE, inputs]}"
        )
    if any(size % PER_BYTE for size in sizes) or len(omega_P) != len(sizes):
        raise ValueError(
            f"sizes {list(sizes)} and {len(omega_P)} scales: each matrix has one scale and a multiple of "
            f"{PER_BYTE} outputs"
        )
    if inputs > MOST_INPUTS:
        raise ValueError(f"{inputs} inputs: sums are exact up to {MOST_INPUTS}")
    return _bitnet_linear(x_TK, weight_RK, omega_P, list(sizes), impl=impl)
