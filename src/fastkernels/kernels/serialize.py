"""Voxels of several clouds along space-filling curves: their codes, and the orders that these give.

    code[o, n] = batch[n] << 3 D | curve_o(grid[n])        D = depth: bits of a coordinate
    order[o] = argsort(code[o]),  inverse[o, order[o, i]] = i

    z          bit i of x, y, z is bit 3 i + 2, 3 i + 1, 3 i of the code
    hilbert    from the top bit of x, y, z down, axis by axis: where the bit of the axis is set, the lower
               bits of x are inverted, where not, those that differ on the two axes are exchanged; the bits,
               x first, are then a Gray code of the place
    -trans     with x and y exchanged

N voxels · O curves. In both, code >> 3 is the code of the voxel of twice the side that a voxel lies in.
Voxels of a cloud are different ones; equal codes would have no order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled

ORDERS = ("z", "z-trans", "hilbert", "hilbert-trans")
MOST_DEPTH = 16  # 48 bits, which leave 15 for the clouds

Sorted = tuple[Tensor, Tensor, Tensor]


def _interleaved(axes: Sequence[Tensor], depth: int) -> Tensor:
    """Bits of the first axis above those of the second, and so on."""
    code = torch.zeros_like(axes[0])
    for bit in range(depth):
        for place, axis in enumerate(reversed(axes)):
            code = code | (axis >> bit & 1) << 3 * bit + place
    return code


def _hilbert(x: Tensor, y: Tensor, z: Tensor, depth: int) -> Tensor:
    axes = [x, y, z]
    for bit in reversed(range(1, depth)):
        lower = (1 << bit) - 1
        for axis in range(3):
            is_set = (axes[axis] >> bit & 1).bool()
            differing = torch.where(is_set, 0, (axes[0] ^ axes[axis]) & lower)
            axes[0] = axes[0] ^ torch.where(is_set, lower, differing)
            if axis:
                axes[axis] = axes[axis] ^ differing
    code, shift = _interleaved(axes, depth), 1
    while shift < 3 * depth:
        code, shift = code ^ code >> shift, 2 * shift
    return code


def _codes(grid_coord_N3: Tensor, batch_N: Tensor, depth: int, orders: Sequence[str]) -> Tensor:
    x, y, z = grid_coord_N3.long().unbind(1)
    found = []
    for order in orders:
        axes = (y, x, z) if order.endswith("-trans") else (x, y, z)
        curve = _hilbert(*axes, depth) if order.startswith("hilbert") else _interleaved(axes, depth)
        found.append(batch_N.long() << 3 * depth | curve)
    return torch.stack(found)


def _serialize(grid_coord_N3: Tensor, batch_N: Tensor, depth: int, orders: Sequence[str]) -> Sorted:
    code_ON = _codes(grid_coord_N3, batch_N, depth, orders)
    order_ON = code_ON.argsort(-1)
    return code_ON, order_ON, inverse_of(order_ON)


def inverse_of(order_ON: Tensor) -> Tensor:
    """Of permutations."""
    place_ON = torch.arange(order_ON.shape[1], device=order_ON.device).expand_as(order_ON)
    return torch.empty_like(order_ON).scatter_(1, order_ON, place_ON)


def _fake(grid_coord_N3: Tensor, batch_N: Tensor, depth: int, orders: Sequence[str]) -> Sorted:
    first, second, third = (
        grid_coord_N3.new_empty((len(orders), len(grid_coord_N3)), dtype=torch.int64) for _ in range(3)
    )
    return first, second, third


_kernel = Kernel(
    "serialize",
    "(Tensor grid_coord, Tensor batch, int depth, str[] orders) -> (Tensor, Tensor, Tensor)",
    _serialize,
    fake=_fake,
    implementations=(
        Implementation("inductor", compiled(_serialize)),
        Implementation("torch", _serialize, devices=("cpu", "cuda")),
    ),
    rows=lambda grid_coord_N3, *_: len(grid_coord_N3),
)


def serialize(
    grid_coord_N3: Tensor, batch_N: Tensor, depth: int, orders: Sequence[str], *, impl: str | None = None
) -> Sorted:
    """(code, order, inverse), each int64 [O, N], of integer coordinates from 0 to below 2^depth.

    Raises KernelError when `impl` cannot serve the call, ValueError for a depth or a curve that there is not.
    """
    if not 1 <= depth <= MOST_DEPTH:
        raise ValueError(f"depth must be 1 to {MOST_DEPTH} bits of a coordinate, not {depth}")
    if unknown := [order for order in orders if order not in ORDERS]:
        raise ValueError(f"there is no curve {unknown[0]!r}; there are {', '.join(ORDERS)}")
    return _kernel(grid_coord_N3, batch_N, depth, list(orders), impl=impl)
