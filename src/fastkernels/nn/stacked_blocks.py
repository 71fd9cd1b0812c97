"""Tensors of a checkpoint that has those of all blocks in one, and matrices with inputs as rows.

h.blocks.ffn.w1.weight [L, in, out]      ->  h.blocks.0.ffn.w1.weight [out, in], ...
h.blocks.norm.weight [L, D]              ->  h.blocks.0.norm.weight [D], ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from fastkernels.nn.misfits import Misfits


@dataclass(frozen=True)
class StackedBlocks:
    """stacks: what stands before the names of stacked tensors. as_they_are: ends of the names of matrices
    whose inputs are rows in the model, too."""

    stacks: tuple[str, ...]
    as_they_are: tuple[str, ...] = ()

    def fold(self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        """The tensors of each block; those of a block alone, as a model is exported, stay as they are."""
        for name, tensor in weights:
            stack = next((stack for stack in self.stacks if name.startswith(stack)), None)
            rest = name.removeprefix(stack or "")
            if stack is None or rest.partition(".")[0].isdigit():
                yield name, tensor
                continue
            for block in range(tensor.shape[0]):
                part = tensor[block]
                is_turned = part.dim() == 2 and not rest.endswith(self.as_they_are)
                yield f"{stack}{block}.{rest}", part.mT if is_turned else part
