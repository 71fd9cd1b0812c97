"""Rotary position embedding of queries and keys, half-split (NeoX) layout.

    out[j]       = x[j] cos(a_j) - x[j + R/2] sin(a_j)           j < R/2,  a_j = position * frequency_j
    out[j + R/2] = x[j + R/2] cos(a_j) + x[j] sin(a_j)
    out[j]       = x[j]                                          j >= R

T tokens · H query heads · J key heads · K head dim · R rotated dims, even, <= K · P positions. A row of
`cos_sin` is [cos(a_0) .. | sin(a_0) ..]: `rotary_table` builds it once for a model. Products and sums in
float32 (float64 stays float64), rounded once to the dtype of the input.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.providers import PROVIDERS
from fastkernels.kernels.rope import reference
from fastkernels.kernels.rope.tables import rotary_table

__all__ = ["rope", "rotary_table"]

_rope = Kernel(
    "rope",
    "(Tensor positions, Tensor query, Tensor key, Tensor cos_sin) -> (Tensor, Tensor)",
    reference.rope,
    fake=lambda positions_T, q_THK, k_TJK, cos_sin_PR: (
        q_THK.new_empty(q_THK.shape),
        k_TJK.new_empty(k_TJK.shape),
    ),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("flashinfer", f"{__name__}.flashinfer", requires=("flashinfer",), extra="gpu"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
        Implementation("sgl_kernel", f"{PROVIDERS}.sgl_kernel", requires=("sgl_kernel",), extra="sgl-kernel"),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
        Implementation("quack", f"{PROVIDERS}.quack", requires=("quack",), extra="quack"),
        Implementation("liger", f"{PROVIDERS}.liger", requires=("liger_kernel",), extra="liger"),
    ),
    rows=lambda positions_T, *_: positions_T.shape[0],
)


def rope(
    positions_T: Tensor, q_THK: Tensor, k_TJK: Tensor, cos_sin_PR: Tensor, *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """Rotated copies of queries and keys, contiguous.

    positions: int64 or int32, each in [0, P). q and k have one dtype and may be strided views with a
    contiguous last dimension. cos_sin is float32 or of the dtype of q. Raises KernelError when `impl` cannot
    serve the call.
    """
    return _rope(positions_T, q_THK, k_TJK, cos_sin_PR, impl=impl)
