"""Rotary position embedding of queries and keys, interleaved pairs, by a table of angles for each position.

    y[2j]     = x[2j] cos[s, j] - x[2j + 1] sin[s, j]        j < K/2,  the token stands at s of its request
    y[2j + 1] = x[2j + 1] cos[s, j] + x[2j] sin[s, j]

B requests · S tokens of each · H heads · K head dim, even. A row of `cos_sin` is [cos .. | sin ..]; all
requests share the table. Products and sums in float32 (float64 stays float64), rounded once to the dtype of
the input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.providers import PROVIDERS


def _reference(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> tuple[Tensor, Tensor]:
    compute = torch.promote_types(torch.promote_types(q_BSHK.dtype, cos_sin_SK.dtype), torch.float32)
    cos_S1J, sin_S1J = cos_sin_SK.to(compute).unsqueeze(1).chunk(2, dim=-1)
    return _rotate(q_BSHK, cos_S1J, sin_S1J), _rotate(k_BSHK, cos_S1J, sin_S1J)


def _rotate(x_BSHK: Tensor, cos_S1J: Tensor, sin_S1J: Tensor) -> Tensor:
    even, odd = x_BSHK.contiguous().to(cos_S1J.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    pairs = (even * cos_S1J - odd * sin_S1J, odd * cos_S1J + even * sin_S1J)
    return torch.stack(pairs, dim=-1).flatten(-2).to(x_BSHK.dtype)


def _torch_unsupported(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> str | None:
    if q_BSHK.dtype not in (torch.float32, torch.float64):
        return "has no complex numbers of 16-bit parts"
    return checks.not_alike(q_BSHK, k_BSHK, cos_sin_SK)


def _torch(q_BSHK: Tensor, k_BSHK: Tensor, cos_sin_SK: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's product of complex numbers: a pair is one number, its turn another."""
    turn_S1J = torch.complex(*cos_sin_SK.unsqueeze(1).chunk(2, dim=-1))
    return _turn(q_BSHK, turn_S1J), _turn(k_BSHK, turn_S1J)


def _turn(x_BSHK: Tensor, turn_S1J: Tensor) -> Tensor:
    pairs_BSHJ = torch.view_as_complex(x_BSHK.contiguous().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs_BSHJ * turn_S1J).flatten(-2)


_rope_pairs = Kernel(
    "rope_pairs",
    "(Tensor query, Tensor key, Tensor cos_sin) -> (Tensor, Tensor)",
    _reference,
    fake=lambda q_BSHK, k_BSHK, cos_sin_SK: (q_BSHK.new_empty(q_BSHK.shape), k_BSHK.new_empty(k_BSHK.shape)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("inductor", compiled(_reference)),
        Implementation("torch", _torch, devices=("cpu", "cuda"), unsupported=_torch_unsupported),
        Implementation("fla", f"{PROVIDERS}.fla", requires=("fla",), extra="gpu"),
        Implementation("quack", f"{PROVIDERS}.quack", requires=("quack",), extra="quack"),
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
