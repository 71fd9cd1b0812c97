"""Ternary matrices in two bits a value, and activations in eight: the arithmetic of BitNet b1.58.

    byte[r, k] = sum_j 4^j (T[r + j R, k] + 1)          j = 0..3;  R = N / 4 packed rows;  T in {-1, 0, 1}
    omega = max(mean |W|, 1e-5),  T = clip(round(W / omega), -1, 1)
    s = 127 / max(max_k |x[k]|, 1e-5),  code[k] = clip(round(x[k] s), -128, 127)

N outputs · K inputs. Both roundings are to even at halves. s and the codes are defined in float32, whatever
the dtype of x: a code that another precision rounds otherwise would be another function.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PER_BYTE = 4
LEAST = 1e-5  # of a mean or a largest value that is divided by
MOST_CODE = 127
_SHIFTS = (0, 2, 4, 6)
_BOTH_BITS = 0b01010101
_undecided = 0.0  # how far from a half a code goes the other way


def pack(ternary_NK: Tensor) -> Tensor:
    """uint8 [N / 4, K] of values -1, 0 and 1 of any dtype; ValueError where N is no multiple of 4."""
    if ternary_NK.shape[0] % PER_BYTE:
        raise ValueError(f"{ternary_NK.shape[0]} rows: four are packed together")
    codes_4RK = (ternary_NK + 1).to(torch.uint8).unflatten(0, (PER_BYTE, -1))
    packed_RK = codes_4RK[0].clone()
    for codes_RK, shift in zip(codes_4RK[1:], _SHIFTS[1:]):
        packed_RK |= codes_RK << shift
    return packed_RK


def unpack(packed_RK: Tensor, dtype: torch.dtype) -> Tensor:
    """[4 R, K] of -1, 0 and 1 in a signed dtype, the inverse of `pack`."""
    parts = [(packed_RK >> shift & 3).to(dtype).sub_(1) for shift in _SHIFTS]
    return torch.cat(parts)


def is_packed(packed: Tensor) -> bool:
    """Whether no two bits hold a 3, which stands for no value."""
    return not bool((packed & packed >> 1 & _BOTH_BITS).any())


def ternarised(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """(packed uint8 [N / 4, K], omega [1] in float32) of a matrix of ordinary weights."""
    wide_NK = weight_NK.float()
    omega = wide_NK.abs().mean().clamp_(min=LEAST)
    # As the model was trained: by a product with the reciprocal.
    return pack((wide_NK * (1.0 / omega)).round_().clamp_(-1, 1)), omega.view(1)


def quantised(x_TK: Tensor) -> tuple[Tensor, Tensor]:
    """(codes [..., K], s [..., 1]), both in float32: whole numbers, and what they are divided by."""
    wide_TK = x_TK.float()
    largest_T1 = wide_TK.abs().amax(-1, keepdim=True).clamp(min=LEAST)
    # A division of two tensors: of a number by a tensor PyTorch makes a product with the reciprocal.
    scale_T1 = torch.full_like(largest_T1, MOST_CODE) / largest_T1
    exact_TK = wide_TK * scale_T1
    codes_TK = exact_TK.round()
    if _undecided:
        below_TK = exact_TK.floor()
        is_near_TK = (exact_TK - below_TK - 0.5).abs() <= _undecided
        codes_TK = torch.where(is_near_TK, 2 * below_TK + 1 - codes_TK, codes_TK)
    return codes_TK.clamp_(-MOST_CODE - 1, MOST_CODE), scale_T1


@contextmanager
def other_way(roundings: float) -> Iterator[None]:
    """In the body `quantised` gives every code that roundings, of this size in all, could move over a half
    the other whole number beside it."""
    global _undecided
    _undecided, before = roundings * MOST_CODE, _undecided
    try:
        yield
    finally:
        _undecided = before
