"""A submanifold convolution: products with the voxels around each voxel that are there.

    y[n] = sum_k weight[:, k] x[neighbors[n, k]] + bias        over the taps k whose neighbour is not -1

N voxels · T taps · C channels in · O channels out; weight [O, T C]. Accumulates in at least float32, rounds
to the dtype of x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.work import Tally


def _reference(x_NC: Tensor, neighbors_NT: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """One tap after the other."""
    dtype = torch.promote_types(x_NC.dtype, torch.float32)
    x_NC, out = x_NC.to(dtype), x_NC.dtype
    weight_OTC = weight_OI.to(dtype).unflatten(1, (neighbors_NT.shape[1], -1))
    y_NO = x_NC.new_zeros(len(x_NC), len(weight_OI))
    for neighbor_N, weight_OC in zip(neighbors_NT.unbind(1), weight_OTC.unbind(1)):
        y_NO += F.linear(_gathered(x_NC, neighbor_N), weight_OC)
    return (y_NO if bias_O is None else y_NO + bias_O.to(dtype)).to(out)


def _gathered(x_NC: Tensor, neighbors: Tensor) -> Tensor:
    """Rows of x, zeros in the place of -1."""
    there = neighbors >= 0
    return torch.where(there[..., None], x_NC[neighbors.clamp_min(0)], 0)


def _torch(x_NC: Tensor, neighbors_NT: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """All taps of a voxel side by side, and one product."""
    return F.linear(_gathered(x_NC, neighbors_NT).flatten(1), weight_OI, bias_O)


def _work(tally: Tally, x_NC: Tensor, neighbors_NT: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> None:
    """At least the tap in the middle has a voxel; how many others have one, only the data say."""
    tally.multiply(x_NC, 2 * x_NC.numel() * len(weight_OI))


_sparse_conv = Kernel(
    "sparse_conv",
    "(Tensor x, Tensor neighbors, Tensor weight, Tensor? bias) -> Tensor",
    _reference,
    fake=lambda x_NC, neighbors_NT, weight_OI, bias_O: x_NC.new_empty(len(x_NC), len(weight_OI)),
    implementations=(
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("triton", f"{__name__}_triton"),
    ),
    rows=lambda x_NC, *_: len(x_NC),
    work=_work,
)


def sparse_conv(
    x_NC: Tensor,
    neighbors_NT: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None,
    *,
    impl: str | None = None,
) -> Tensor:
    """[N, O], contiguous, in the one dtype of x, weight and bias. neighbors: of sparse_neighbors, int32.

    Raises KernelError when `impl` cannot serve the call, ValueError where the weight is of other taps.
    """
    if weight_OI.shape[1] != neighbors_NT.shape[1] * x_NC.shape[1]:
        raise ValueError(
            f"a weight {list(weight_OI.shape)} is none of {neighbors_NT.shape[1]} taps of {x_NC.shape[1]} "
            "channels"
        )
    return _sparse_conv(x_NC, neighbors_NT, weight_OI, bias_O, impl=impl)
