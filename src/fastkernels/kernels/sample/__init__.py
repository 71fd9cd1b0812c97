"""The next token of each row: argmax, or a draw that depends on the row alone.

    id = argmax_v logits[v]                                      temperature 0
    id = argmax_{v allowed} logits[v] / temperature + g[v]       g[v] = -log E[v] standard Gumbel noise, so
    that
                                                                 P(id = v) = softmax(logits / temperature)[v]

Ties go to the lowest id. The noise is counter-based, so a draw does not depend on the batch around it:

    (x0, x1, x2, x3) = Philox4x32-10(key = seed, counter = (v // 4, position low, position high, 0))
    w = min((x[v % 4] + 1/2) 2^-32, 1 - 2^-24)      E = -log(1 - w)

Of a vocabulary that is split over ranks each compares its own ids, `first` and those behind it, and keeps the
best as one number, of which the largest is the best of all (sample_part):

    key = score's bits as an integer in the same order · 2^32 + 2^31 - 1 - id

B rows · V vocabulary
"""

from __future__ import annotations

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.sample import reference

_sample = Kernel(
    "sample",
    "(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, Tensor seeds, "
    "Tensor positions) -> Tensor",
    reference.sample,
    fake=lambda logits_BV, temperature_B, top_k_B, top_p_B, seeds_B, positions_B: seeds_B.new_empty(
        seeds_B.shape
    ),
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda logits_BV, *_: logits_BV.shape[0],
)

_sample_part = Kernel(
    "sample_part",
    "(Tensor logits, Tensor temperature, Tensor seeds, Tensor positions, int first) -> Tensor",
    reference.sample_part,
    fake=lambda logits_BV, temperature_B, seeds_B, positions_B, first: seeds_B.new_empty(seeds_B.shape),
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda logits_BV, *_: logits_BV.shape[0],
)
_LOW = 2**31 - 1


def sample(
    logits_BV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor | None,
    top_p_B: Tensor | None,
    seeds_B: Tensor,
    positions_B: Tensor,
    *,
    impl: str | None = None,
) -> Tensor:
    """ids_B int64: one drawn token for each row.

    logits_BV: float32, last dimension contiguous. temperature_B: float32, at least 0.
    top_k_B int32: the k highest logits are allowed, ties to the lowest ids; 0 allows all.
    top_p_B float32: of those, the fewest most probable ones whose probability (after temperature and top_k)
    reaches top_p, at least one; 1 allows all. None means off for every row, which spares the sort. seeds_B,
    positions_B int64: the draw's identity; the same pair draws the same noise on every device. Raises
    KernelError when `impl` cannot serve the call.
    """
    return _sample(logits_BV, temperature_B, top_k_B, top_p_B, seeds_B, positions_B, impl=impl)


def sample_part(
    logits_BV: Tensor,
    temperature_B: Tensor,
    seeds_B: Tensor,
    positions_B: Tensor,
    first: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """keys_B int64: the best of the ids first .. first + V - 1 of each row. `id_of` the largest key of all
    ranks is what `sample` gives of the whole logits, without top_k and top_p.

    first: a multiple of 4, whose noise is made at once. The rest as in `sample`; scores are float32.
    """
    if first % 4:
        raise ValueError(f"first={first}: a rank's ids must begin at a multiple of 4")
    return _sample_part(logits_BV, temperature_B, seeds_B, positions_B, first, impl=impl)


def id_of(keys_B: Tensor) -> Tensor:
    """ids_B int64 of keys of `sample_part`."""
    return _LOW - (keys_B & _LOW)
