"""Weights of eight bits with a scale for each block, expanded while a checkpoint is read.

    w[i, j] = code[i, j] scale[i // B, j // B]          of a matrix, or of each matrix of a stack

Codes are float8 (E4M3), B is the side of a block. The scales of `name` are `name_scale_inv`, which in spite
of its name multiplies. Products of a code and a scale are float32; the parameter's dtype rounds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.nn.misfits import Misfits

SCALES = "_scale_inv"
CODES = torch.float8_e4m3fn


@dataclass(frozen=True)
class BlockScales:
    block: int

    def fold(self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a checkpoint with expanded ones. `misfits` gets codes without scales, scales without
        codes, and scales of another grid; in the place of codes comes then a tensor of their shape."""
        codes: dict[str, Tensor] = {}
        scales: dict[str, Tensor] = {}
        for name, tensor in weights:
            first = name.removesuffix(SCALES)
            if tensor.dtype != CODES and first == name:
                yield name, tensor
                continue
            (scales if first != name else codes)[first] = tensor
            if first in codes and first in scales:
                yield first, self._expanded(first, codes.pop(first), scales.pop(first), misfits)
        for name, tensor in codes.items():
            misfits.missing.append(f"missing     {name}{SCALES}: {name} holds codes of eight bits")
            yield name, tensor.float()
        misfits.unexpected += [f"unexpected  {name}{SCALES} without codes of eight bits" for name in scales]

    def _expanded(self, name: str, codes: Tensor, scales: Tensor, misfits: Misfits) -> Tensor:
        *stack, rows, columns = codes.shape
        grid = [*stack, -(-rows // self.block), -(-columns // self.block)]
        if list(scales.shape) != grid or not scales.is_floating_point():
            misfits.has_wrong_shape(name + SCALES, scales.shape, grid)
            return codes.float()
        wide = scales.float().repeat_interleave(self.block, -1)[..., :columns]
        return codes.float().mul_(wide.repeat_interleave(self.block, -2)[..., :rows, :])
