"""Arithmetic as others might do it: every result rounded to fewer bits, or sums taken in another order.

    with narrower(torch.float32): ...     results of float32 operations have tf32's 10 bits of mantissa
    with narrow_sums(torch.bfloat16): ... sums and matrix products add up in bfloat16
    with HalfSquares(): ...               squares are float16: of 256 and more they are infinite
    with other_order(): ...               the same sums, in parts and from the other end; nothing is lost

Works on what PyTorch's operators see, so on `reference` implementations. Copies (gather, cat, store) lose
nothing: they are no arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Bits of mantissa after the leading one, in the next format below: float32 -> tf32, bfloat16 -> fp8 (e4m3),
# float16 -> bfloat16, float64 -> float32.
NARROWER = {torch.float64: 23, torch.float32: 10, torch.float16: 7, torch.bfloat16: 3}
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
PART = 16  # products that are added before a sum in few bits is rounded: one step of a tensor core (m16n8k16)
PARTS = 3  # of a sum in another order; libraries cut at powers of two, whose halves may come out the same
_MOVES = (
    "_to_copy", "alias", "cat", "clone", "copy_", "embedding", "empty", "fill_", "gather", "index",
    "index_copy_", "index_put_", "index_select", "masked_fill", "masked_fill_", "new_empty", "new_zeros",
    "ones", "repeat", "stack", "where", "zeros", "zero_",
)  # fmt: skip
_aten = torch.ops.aten


def rounded(x: Tensor, bits: int) -> Tensor:
    """x with `bits` bits of mantissa after the leading one, to nearest and ties to even, in its own dtype and
    range; of a number below the normal ones as many bits are lost."""
    integer = _INTEGERS[x.element_size()]
    lost = round(-math.log2(torch.finfo(x.dtype).eps)) - bits
    if lost <= 0:
        return x
    # A float's bits are ordered as its magnitude is: what a mantissa carries goes to the exponent.
    magnitude = x.contiguous().view(integer)
    is_odd = (magnitude >> lost).bitwise_and_(1)
    nearest = is_odd.add_(magnitude).add_(2 ** (lost - 1) - 1).bitwise_and_(-(2**lost))
    return torch.where(x.isfinite(), nearest.view(x.dtype), x)


def narrower(dtype: torch.dtype) -> TorchDispatchMode:
    return _Rounding(NARROWER[dtype])


def narrow_sums(dtype: torch.dtype) -> TorchDispatchMode:
    return _Sums(PART, dtype)


def other_order() -> TorchDispatchMode:
    return _Sums(None, None)


class _Rounding(TorchDispatchMode):
    """Rounds what every operator computes, and what enters a matrix product."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            args = tuple(self._round(x) for x in args)
        result = func(*args, **(kwargs or {}))
        if _name(func) in _MOVES or func.is_view:
            return result
        if func._schema.is_mutable:
            return result.copy_(self._round(result)) if isinstance(result, Tensor) else result
        return tuple(map(self._round, result)) if isinstance(result, tuple) else self._round(result)

    def _round(self, x: Any) -> Any:
        return rounded(x, self._bits) if isinstance(x, Tensor) and x.is_floating_point() else x


class HalfSquares(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        power = func is _aten.pow.Tensor_Scalar and args[1] == 2
        if power or (func is _aten.mul.Tensor and args[0] is args[1]):
            return result.to(torch.float16).to(result.dtype)
        return result


class _Sums(TorchDispatchMode):
    """Takes sums part by part, last part first; `kept`: the dtype of partial sums, None: as they come."""

    def __init__(self, part: int | None, kept: torch.dtype | None) -> None:
        super().__init__()
        self._part, self._kept = part, kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.addmm.default and not kwargs:
            bias, a, b = args
            return self._product(a, b, _aten.mm.default, bias)
        if func in _PRODUCTS and not kwargs and len(args) == 2:
            return self._product(args[0], args[1], func)
        if func in (_aten.mean.dim, _aten.sum.dim_IntList) and isinstance(args[0], Tensor):
            return self._reduced(func, *args, **kwargs)
        if func is _aten._softmax.default:
            x, dim, half_to_float = args
            return func(x.flip(dim), dim, half_to_float).flip(dim)
        return func(*args, **kwargs)

    def _product(self, a: Tensor, b: Tensor, func: Any, bias: Tensor | None = None) -> Tensor:
        wide = torch.promote_types(a.dtype, torch.float32)
        if self._is_narrow(a):
            total = _few_bits().product(a, b, self._part, self._kept)
        else:
            step = self._part or -(-a.shape[-1] // PARTS)
            parts = zip(_from_end(a.to(wide), step, -1), _from_end(b.to(wide), step, -2))
            total = self._added(func(left, right) for left, right in parts)
        return (total if bias is None else total + bias.to(wide)).to(a.dtype)

    def _reduced(self, func: Any, x: Tensor, dims: Sequence[int] | None, *rest: Any, **kwargs: Any) -> Tensor:
        if dims is None or len(dims) != 1 or kwargs or not x.is_floating_point():
            return func(x, dims, *rest, **kwargs)
        wide = torch.promote_types(x.dtype, torch.float32)
        if self._is_narrow(x) and x.numel():
            total = _few_bits().total(x.to(wide), dims[0], self._part, self._kept)
            total = total.unsqueeze(dims[0]) if rest and rest[0] else total
        else:
            step = self._part or -(-x.shape[dims[0]] // PARTS)
            parts = _from_end(x.to(wide), step, dims[0])
            total = self._added(_aten.sum.dim_IntList(part, dims, *rest) for part in parts)
        is_mean = func is _aten.mean.dim
        return (total / x.shape[dims[0]] if is_mean else total).to(x.dtype)

    def _is_narrow(self, x: Tensor) -> bool:
        """Whether sums of `x` are kept in few bits on a GPU: there they are one launch, not two a part."""
        return self._kept is not None and x.is_cuda and x.dtype.itemsize <= 4

    def _added(self, parts: Iterator[Tensor]) -> Tensor:
        """A sum of one part is never kept: it is rounded as the result is, like any other."""
        total = next(parts)
        wide = total.dtype
        for part in parts:
            total = total.to(self._kept or wide)
            torch.add(total, part, out=total)  # computed in `wide` and rounded once
        return total.to(wide)


def _few_bits() -> Any:
    from fastkernels.audit import few_bits  # Triton is on Linux only

    return few_bits


def _from_end(x: Tensor, step: int, dim: int) -> Iterator[Tensor]:
    return reversed(x.split(step, dim))


_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default)


def _name(func: Any) -> str:
    return func._schema.name.removeprefix("aten::")
