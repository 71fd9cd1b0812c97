"""What a text encoder begins with: rows of two tables and one that all tokens share, their sum normalised.

    y[t] = layer_norm(words[ids[t]] + places[positions[t]] + shared)

T tokens · V vocabulary · P positions · D hidden. In float32 (float64 stays float64), rounded once to the
dtype of the tables; an implementation may round the sum, too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, embedding

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.work import Tally


def _reference(
    ids_T: Tensor,
    positions_T: Tensor,
    words_VD: Tensor,
    places_PD: Tensor,
    shared_D: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> Tensor:
    dtype = torch.promote_types(words_VD.dtype, torch.float32)
    x_TD = words_VD[ids_T].to(dtype) + places_PD[positions_T].to(dtype) + shared_D.to(dtype)
    centred = x_TD - x_TD.mean(-1, keepdim=True)
    scale_T1 = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * scale_T1 * weight_D.to(dtype) + bias_D.to(dtype)).to(words_VD.dtype)


def _torch(
    ids_T: Tensor,
    positions_T: Tensor,
    words_VD: Tensor,
    places_PD: Tensor,
    shared_D: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> Tensor:
    """Added in the order of the parts, so that a model with one of them replaced rounds as this does."""
    x_TD = embedding(words_VD, ids_T) + shared_D + embedding(places_PD, positions_T)
    return F.layer_norm(x_TD, weight_D.shape, weight_D, bias_D, eps)


def _work(tally: Tally, ids_T: Tensor, positions_T: Tensor, words_VD: Tensor, *rest: Tensor) -> None:
    tally.look_up(words_VD, ids_T.numel())
    tally.look_up(rest[0], positions_T.numel())


_summed_embedding = Kernel(
    "summed_embedding",
    "(Tensor ids, Tensor positions, Tensor words, Tensor places, Tensor shared, Tensor weight, Tensor bias, "
    "float eps) -> Tensor",
    _reference,
    fake=lambda ids_T, positions_T, words_VD, *_: words_VD.new_empty(len(ids_T), words_VD.shape[1]),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
        Implementation("inductor", compiled(_reference)),
    ),
    rows=lambda ids_T, *_: len(ids_T),
    work=_work,
)


def summed_embedding(
    ids_T: Tensor,
    positions_T: Tensor,
    words_VD: Tensor,
    places_PD: Tensor,
    shared_D: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """[T, D], contiguous, in the dtype of the tables, which all are contiguous and of one dtype. ids in
    [0, V) and positions in [0, P), int64 or int32.

    Raises KernelError when `impl` cannot serve the call, IndexError for an id out of range on CPU; on CUDA
    such an id is a device-side assertion, or, by the Triton kernel, reads what lies behind the table.
    """
    tables = (words_VD, places_PD, shared_D, weight_D, bias_D)
    return _summed_embedding(ids_T, positions_T, *tables, eps, impl=impl)
