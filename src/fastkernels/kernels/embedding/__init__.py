"""Rows of a table.

    y[t] = weight[ids[t]]

T tokens · V vocabulary · D hidden
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.embedding import reference

_embedding = Kernel(
    "embedding",
    "(Tensor ids, Tensor weight) -> Tensor",
    reference.embedding,
    fake=lambda ids_T, weight_VD: weight_VD.new_empty((*ids_T.shape, weight_VD.shape[-1])),
    implementations=(Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),),
    rows=lambda ids_T, weight_VD: ids_T.numel(),
)


def embedding(ids_T: Tensor, weight_VD: Tensor, *, impl: str | None = None) -> Tensor:
    """The rows of `weight` at `ids` (int64 or int32, any shape, each in [0, V)), contiguous.

    Raises KernelError when `impl` cannot serve the call, IndexError for an id out of range on CPU; on CUDA
    such an id is a device-side assertion.
    """
    return _embedding(ids_T, weight_VD, impl=impl)
