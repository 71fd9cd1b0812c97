"""Rotary position embedding of queries and keys, interleaved pairs, by a table of angles for each position.

    y[2j]     = x[2j] cos[s, j] - x[2j + 1] sin[s, j]        j < K/2,  the token stands at s of its request
    y[2j + 1] = x[2j + 1] cos[s, j] + x[2j] sin[s, j]

B requests · S tokens of each · H heads · K head dim, even. A row of `cos_sin` is [cos .. | sin ..]; all
requests share the table. Products and sums in float32 (float64 stays float64), rounded once to the dtype of
the input.
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.rope_pairs import reference

_rope_pairs = Kernel(
    "rope_pairs",
    "(Tensor query, Tensor key, Tensor cos_sin) -> (Tensor, Tensor)",
    reference.rope_pairs,
    fake=lambda q_BSHK, k_BSHK, cos_sin_SK: (q_BSHK.new_empty(q_BSHK.shape), k_BSHK.new_empty(k_BSHK.shape)),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda q_BSHK, *_: q_BSHK.shape[0] * q_BSHK.shape[1],
)


def rope_pairs(
    q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor, *, impl: str | None = None
) -> tuple[Tensor, Tensor]:
    """Rotated copies of queries and keys, contiguous, in their dtype.

    q and k have one shape and dtype and may be strided views with a contiguous last dimension; cos_sin is
    float32 or of the dtype of q. Raises KernelError when `impl` cannot serve the call.
    """
    return _rope_pairs(q_BSHK, k_BSHK, cos_sin_SK, impl=impl)
