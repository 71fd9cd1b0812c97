"""Batch norms of a checkpoint folded into the convolutions before them, while it is read.

    w'[c] = w[c] g[c] / sqrt(var[c] + eps)          b'[c] = beta[c] - mean[c] g[c] / sqrt(var[c] + eps)

`P.conv.weight` with `P.bn.weight`, `P.bn.bias`, `P.bn.running_mean` and `P.bn.running_var` become
`P.conv.weight` and `P.conv.bias`: what a checkpoint holds whose norms were folded before it was saved, and
which passes as it is. Two folded convolutions of the same input whose results are summed become one: the
smaller filters lie in the middle of the larger. In at least float32; only the parameter's dtype rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.nn.misfits import Misfits

_FILTERS = "filters"
_NORM = ("weight", "bias", "running_mean", "running_var")
_COUNTER = "num_batches_tracked"  # of training


@dataclass(frozen=True)
class Folding:
    """eps: of the norms, which no checkpoint holds. sums: a convolution -> the two that it is the sum of,
    larger filters first, as ends of names (`cv1.2.conv` -> `cv1.2.conv.conv`, `cv1.2.conv1.conv`). norms: a
    convolution -> its norm, by their whole names, where these are not `conv` and `bn` of one module."""

    eps: float
    sums: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    norms: Mapping[str, str] = field(default_factory=dict)

    def fold(self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a checkpoint without its norms. What cannot be folded is added to `misfits`; in its
        place come tensors that are right in shape, as far as it is known, so that nothing is told twice."""
        return self._summed(self._folded(weights, misfits), misfits)

    def _folded(
        self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits
    ) -> Iterator[tuple[str, Tensor]]:
        convolutions = {norm: convolution for convolution, norm in self.norms.items()}
        waiting: dict[str, dict[str, Tensor]] = {}
        for name, tensor in weights:
            module, _, kind = name.rpartition(".")
            norm_of = convolutions.get(module) or _beside(module, "bn", "conv")
            if norm_of and kind == _COUNTER:
                continue
            if norm_of and kind in _NORM:
                convolution, part = norm_of, kind
            elif kind == "weight" and self._norm(module):
                convolution, part = module, _FILTERS
            else:
                yield name, tensor
                continue
            parts = waiting.setdefault(convolution, {})
            if part in parts:
                misfits.unexpected.append(f"unexpected  {name} given twice")
                continue
            parts[part] = tensor
            if len(parts) == 1 + len(_NORM):
                yield from self._fold(convolution, waiting.pop(convolution), misfits)
        for convolution, parts in waiting.items():
            if parts.keys() == {_FILTERS}:  # a convolution alone was folded before
                yield f"{convolution}.weight", parts[_FILTERS]
            else:
                yield from self._fold(convolution, parts, misfits)

    def _norm(self, convolution: str) -> str | None:
        return self.norms.get(convolution) or _beside(convolution, "conv", "bn")

    def _fold(
        self, convolution: str, parts: Mapping[str, Tensor], misfits: Misfits
    ) -> Iterator[tuple[str, Tensor]]:
        """The folded filters and bias; where a part is missing or has another length than most, the filters
        as they are and a bias of zeros."""
        weight, bias = f"{convolution}.weight", f"{convolution}.bias"
        lengths = Counter(len(part) for part in parts.values() if part.dim())
        (rows, _), *_ = lengths.most_common(1) or [(0, 0)]
        absent = [kind for kind in _NORM if kind not in parts]
        wrong = [kind for kind in _NORM if kind in parts and list(parts[kind].shape) != [rows]]
        norm = self._norm(convolution)
        for kind in absent:
            misfits.lacks(f"{norm}.{kind}", [rows])
        for kind in wrong:
            misfits.has_wrong_shape(f"{norm}.{kind}", parts[kind].shape, [rows])
        filters = parts.get(_FILTERS)
        if absent or wrong or filters is None or filters.dim() != 4 or len(filters) != rows:
            if filters is not None:
                yield weight, filters
            yield bias, torch.zeros(rows)
            return
        dtype = torch.promote_types(filters.dtype, torch.float32)
        gain, shift, mean, variance = (parts[kind].to(dtype) for kind in _NORM)
        factor = gain / torch.sqrt(variance + self.eps)
        yield weight, filters.to(dtype) * factor.view(-1, 1, 1, 1)
        yield bias, shift - mean * factor

    def _summed(
        self, weights: Iterable[tuple[str, Tensor]], misfits: Misfits
    ) -> Iterator[tuple[str, Tensor]]:
        ends = {end: (result, i) for result, pair in self.sums.items() for i, end in enumerate(pair)}
        waiting: dict[str, dict[int, tuple[str, Tensor]]] = {}
        for name, tensor in weights:
            convolution, _, kind = name.rpartition(".")
            end = next((end for end in ends if convolution.endswith(f".{end}")), None)
            if end is None:
                yield name, tensor
                continue
            result, i = ends[end]
            target = f"{convolution.removesuffix(end)}{result}.{kind}"
            pair = waiting.setdefault(target, {})
            pair[i] = name, tensor
            if len(pair) == 2:
                del waiting[target]
                yield target, _sum(*pair[0], *pair[1], misfits)
        for target, ((i, (name, tensor)),) in ((target, pair.items()) for target, pair in waiting.items()):
            convolution, _, kind = name.rpartition(".")
            result = ends[next(end for end in ends if convolution.endswith(f".{end}"))][0]
            absent = convolution.removesuffix(self.sums[result][i]) + self.sums[result][1 - i]
            misfits.missing.append(f"missing     {absent}.{kind}, which is added to {name}")
            yield target, tensor


def _beside(module: str, last: str, other: str) -> str | None:
    """`model.0.bn` -> `model.0.conv`, where the module's own name is `last`."""
    parent, dot, own = module.rpartition(".")
    return f"{parent}{dot}{other}" if own == last else None


def _sum(large_name: str, larger: Tensor, small_name: str, smaller: Tensor, misfits: Misfits) -> Tensor:
    """Biases added; filters too, the smaller ones with zeros around them."""
    gaps = [large - small for large, small in zip(larger.shape[2:], smaller.shape[2:])]
    fit = larger.dim() == smaller.dim() and larger.shape[:2] == smaller.shape[:2]
    if not fit or any(gap < 0 or gap % 2 for gap in gaps):
        misfits.misshapen.append(
            f"misshapen   {small_name} {list(smaller.shape)} cannot be added to "
            f"{large_name} {list(larger.shape)}"
        )
        return larger
    if larger.dim() == 1:
        return larger + smaller
    rows, columns = (gap // 2 for gap in gaps)
    return larger + F.pad(smaller, (columns, columns, rows, rows))
