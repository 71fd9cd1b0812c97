"""Inputs moved as roundings move them: x becomes x (1 + size xi), in float64, with xi

    of_values      uniform in [-1, 1) and a function of the value: equal values move together. Where all
                   elements of a row are equal, roundings do not average out, and a softmax over such rows
                   moves by several times what independent ones would give.
    of_sums        a random walk along the row, from its end, whose steps are uniform in [-1/2, 1/2). Adding
                   up a row rounds each partial sum, by half a step at most: as if all elements before it had
                   moved.
    of_equal_sums  the same in rows of equal values. Their sum is rounded the same way each time until it has
                   doubled, so the steps of the walk are equal so long, and of -1/2 or 1/2, because nothing
                   averages out. A layer norm of equal values is nothing but that, and as long as they move
                   together, nothing shows it.

No value moves by more than its own dtype's rounding. A model's parameters are moved more often than anything
else is done with them, so one tensor lies here in float64 at a time, and pieces beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from fastkernels.judge.bounds import floor

PIECE = 1 << 22  # elements at a time: in float64 they stay in a GPU's L2 from pass to pass
_SHORT = 2**16  # values that 16 bits have
_ODD = 0x1E3779B97F4A7C15  # a large odd number of no meaning

Movement = Callable[[Tensor, float, int], Tensor]  # tensor, size and seed


@dataclass(frozen=True)
class Moved(Mapping[str, Tensor]):
    """Inputs, moved one by one as they are asked for: all of a model's parameters at a time would take as
    much memory as the oracle. Values that were asked for are in `rounded`, in their own dtype; walks, which
    it cannot say, are not."""

    inputs: Mapping[str, Tensor]
    kept: Collection[str]
    size: float
    movement: Movement
    seed: int
    rounded: dict[str, Tensor] = field(default_factory=dict)

    @property
    def is_lost(self) -> bool:
        """Whether no dtype can say the movement. Of inputs that an oracle has run on."""
        return all(torch.equal(self.rounded[name], tensor) for name, tensor in self.inputs.items())

    def __getitem__(self, name: str) -> Tensor:
        moved = tensor = self.inputs[name]
        if name not in self.kept and tensor.is_floating_point():
            moved = self.movement(tensor, min(self.size, floor(tensor.dtype)), self.seed)
        if self.movement is of_values:
            self.rounded[name] = moved.to(tensor.dtype)
        return moved

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)


def of_values(tensor: Tensor, size: float, seed: int) -> Tensor:
    def moved(values: Tensor) -> Tensor:
        mixed = values.view(torch.int64) + (2 * seed + 1) * _ODD % 2**63
        for shift in (32, 29):
            mixed = (mixed ^ (mixed >> shift)) * _ODD
        return mixed.double().div_(2**63).mul_(size).add_(1).mul_(values)

    return _by_value(tensor, moved)


def of_sums(tensor: Tensor, size: float, seed: int) -> Tensor:
    return _by_rows(tensor, size, seed, lambda rows_RC, steps_RC: _walk(steps_RC))


def of_equal_sums(tensor: Tensor, size: float, seed: int) -> Tensor:
    if not bool(equal_rows(tensor).any()):  # as in most parameters: nothing moves
        return tensor.double()

    def xi(rows_RC: Tensor, steps_RC: Tensor) -> Tensor:
        counts = torch.arange(1, rows_RC.shape[-1] + 1, device=rows_RC.device, dtype=torch.float64)
        doubled = 2 ** torch.frexp(counts).exponent.sub(1) - 1  # 0, 1, 1, 3, 3, 3, 3, 7, ...
        return torch.where(equal_rows(rows_RC), _walk(steps_RC[..., doubled].sign() / 2), 0)

    return _by_rows(tensor, size, seed, xi)


def equal_rows(values: Tensor) -> Tensor:
    """[..., 1]: whether all values of a row are equal. Zeros are not: no factor moves them."""
    if values.dim() and values.shape[-1] > 1:
        return (values == values[..., :1]).all(-1, keepdim=True) & (values[..., :1] != 0)
    return torch.zeros(1, dtype=torch.bool, device=values.device)


def _by_value(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function` looks at each value alone, in float64. Of many values of 16 bits most are equal, so theirs
    are looked up."""
    found = torch.empty(tensor.shape, dtype=torch.float64, device=tensor.device)
    flat, pieces = tensor.reshape(-1), found.view(-1).split(PIECE)
    if tensor.element_size() != 2 or tensor.numel() <= _SHORT:
        for values, piece in zip(flat.split(PIECE), pieces):
            piece.copy_(function(values.double()))
        return found
    half = _SHORT // 2
    bits = torch.arange(-half, half, dtype=torch.int16, device=tensor.device)
    table = function(bits.view(tensor.dtype).double())
    for places, piece in zip(flat.view(torch.int16).split(PIECE), pieces):
        torch.index_select(table, 0, places.int().add_(half), out=piece)
    return found


def _by_rows(tensor: Tensor, size: float, seed: int, xi: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`xi` of some rows and of steps as many, uniform in [-1/2, 1/2)."""
    generator = Generator(tensor.device).manual_seed(seed)
    found = tensor.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    found_RC = found.view(-1, max(1, found.shape[-1] if found.dim() else 1))
    for rows_RC in found_RC.split(max(1, PIECE // found_RC.shape[1])):
        steps_RC = torch.empty_like(rows_RC).uniform_(-0.5, 0.5, generator=generator)
        rows_RC.mul_(xi(rows_RC, steps_RC).mul_(size).add_(1))
    return found


def _walk(steps_RC: Tensor) -> Tensor:
    return steps_RC.flip(-1).cumsum(-1).flip(-1)
