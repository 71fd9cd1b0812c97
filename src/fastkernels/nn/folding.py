"""Batch norms of a checkpoint folded into the convolutions before them, while it is read.

    w'[c] = w[c] g[c] / sqrt(var[c] + eps)          b'[c] = beta[c] - mean[c] g[c] / sqrt(var[c] + eps)

`P.conv.weight` with `P.bn.weight`, `P.bn.bias`, `P.bn.running_mean` and `P.bn.running_var` become
`P.conv.weight` and `P.conv.bias`: what a checkpoint holds whose norms were folded before it was saved, and
which passes as it is. Two folded convolutions of the same input whose results are summed become one: the
smaller filters lie in the middle of the larger. In at least float32; only the parameter's dtype rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.errors import WeightsError

_GAIN, _SHIFT, _MEAN, _VARIANCE = (f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var"))
_NORM = {_GAIN, _SHIFT, _MEAN, _VARIANCE}
_COUNTER = "bn.num_batches_tracked"  # of training
_WEIGHT, _BIAS = "conv.weight", "conv.bias"


@dataclass(frozen=True)
class Folding:
    """eps: of the norms, which no checkpoint holds. sums: a convolution -> the two that it is the sum of,
    larger filters first, as ends of names (`cv1.2.conv` -> `cv1.2.conv.conv`, `cv1.2.conv1.conv`)."""

    eps: float
    sums: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def fold(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a checkpoint without its norms. WeightsError for norms that are not whole."""
        return self._summed(self._folded(weights))

    def _folded(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        waiting: dict[str, dict[str, Tensor]] = {}
        for name, tensor in weights:
            prefix, kind = _split(name)
            if kind == _COUNTER:
                continue
            if kind not in _NORM | {_WEIGHT}:
                yield name, tensor
                continue
            parts = waiting.setdefault(prefix, {})
            if kind in parts:
                raise WeightsError(f"The checkpoint holds {name} twice")
            parts[kind] = tensor
            if parts.keys() == _NORM | {_WEIGHT}:
                del waiting[prefix]
                weight, bias = _fold(parts, self.eps)
                yield prefix + _WEIGHT, weight
                yield prefix + _BIAS, bias
        for prefix, parts in waiting.items():
            if parts.keys() != {_WEIGHT}:  # a convolution alone was folded before
                absent = ", ".join(sorted((_NORM | {_WEIGHT}) - parts.keys()))
                raise WeightsError(f"The checkpoint holds a part of {prefix}bn only: {absent} missing")
            yield prefix + _WEIGHT, parts[_WEIGHT]

    def _summed(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        ends = {end: (result, i) for result, pair in self.sums.items() for i, end in enumerate(pair)}
        waiting: dict[str, dict[int, Tensor]] = {}
        for name, tensor in weights:
            convolution, _, kind = name.rpartition(".")
            end = next((end for end in ends if convolution.endswith(f".{end}")), None)
            if end is None:
                yield name, tensor
                continue
            result, i = ends[end]
            target = f"{convolution.removesuffix(end)}{result}.{kind}"
            pair = waiting.setdefault(target, {})
            pair[i] = tensor
            if len(pair) == 2:
                del waiting[target]
                yield target, _sum(pair[0], pair[1])
        if waiting:
            raise WeightsError(f"The checkpoint holds one of two convolutions only of {min(waiting)}")


def _split(name: str) -> tuple[str, str]:
    """`model.0.bn.bias` -> `model.0.`, `bn.bias`"""
    parts = name.split(".")
    return "".join(f"{part}." for part in parts[:-2]), ".".join(parts[-2:])


def _fold(parts: Mapping[str, Tensor], eps: float) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(parts[_WEIGHT].dtype, torch.float32)
    weight, gain, shift, mean, variance = (
        parts[k].to(dtype) for k in (_WEIGHT, _GAIN, _SHIFT, _MEAN, _VARIANCE)
    )
    factor = gain / torch.sqrt(variance + eps)
    return weight * factor.view(-1, 1, 1, 1), shift - mean * factor


def _sum(larger: Tensor, smaller: Tensor) -> Tensor:
    """Biases added; filters too, the smaller ones with zeros around them."""
    if larger.dim() == 1:
        return larger + smaller
    rows, columns = ((large - small) // 2 for large, small in zip(larger.shape[2:], smaller.shape[2:]))
    return larger + F.pad(smaller, (columns, columns, rows, rows))
