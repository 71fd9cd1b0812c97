"""ep_dispatch and ep_combine in Triton, over memory that the GPUs share: only rows that are needed travel.

How rows travel without barriers: exchange_triton.py. A rank may have nothing for another, so program 0 of
each rank sends a sign beside the rows: every launch must hear from every rank. What choices the others made
comes first, by all_gather: who knows them knows which rows to wait for. A program waits for what the other
ranks' programs of its number send, so none waits for one that has not begun.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks, exchange_triton, symmetric
from fastkernels.kernels.ep_exchange import dequantized, here_of, quantized
from fastkernels.kernels.exchange_triton import FLOATS, TRANSFERRED, advance, send, slots_of, take
from fastkernels.kernels.launch import power_of_two, warps
from fastkernels.kernels.overlap import follow, overlap

WIDEST, MOST_PROGRAMS = 16384, 128
SIGN = 32  # bytes at the end of a slot


def unsupported(kernel: str, x: Tensor, ids_TK: Tensor, *rest: Any) -> str | None:
    if reason := exchange_triton.not_sent(x, ids_TK):
        return reason
    if x.shape[1] > WIDEST or x.shape[1] % (2 * checks.VECTOR_BYTES):
        return f"sends rows of up to {WIDEST} elements and a multiple of {2 * checks.VECTOR_BYTES}"
    return symmetric.unsupported(x, ids_TK.shape[0] * x.shape[1] * x.element_size() + SIGN)


def ep_dispatch(
    x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, num_experts: int, use_fp8: bool
) -> tuple[Tensor, Tensor, Tensor]:
    top_k, scales = ids_TK.shape[1], []
    row_TD = x_TD.contiguous()
    if use_fp8:
        bytes_TD, scale_TG = quantized(x_TD)
        row_TD, scales = bytes_TD.view(torch.bfloat16), [scale_TG]
    told_SM = exchange_triton.all_gather(torch.cat((ids_TK.float(), weights_TK, *scales), 1), 0)
    ids_SK = here_of(told_SM[:, :top_k].to(torch.int32), num_experts)
    weights_SK = told_SM[:, top_k : 2 * top_k] * (ids_SK >= 0)
    row_SD = row_TD.new_empty((len(ids_SK), row_TD.shape[1]))
    _launch(_dispatch, row_TD, row_SD, ids_TK, ids_SK, num_experts)
    if use_fp8:
        row_SD = dequantized(row_SD.view(torch.float8_e4m3fn), told_SM[:, 2 * top_k :], x_TD.dtype)
    return row_SD, ids_SK, weights_SK


def ep_combine(x_SD: Tensor, ids_TK: Tensor, num_experts: int, received_SK: Tensor | None) -> Tensor:
    if received_SK is None:
        received_SK = here_of(exchange_triton.all_gather(ids_TK.float(), 0).to(torch.int32), num_experts)
    y_TD = x_SD.new_empty((ids_TK.shape[0], x_SD.shape[1]))
    _launch(_combine, x_SD.contiguous(), y_TD, ids_TK, received_SK, num_experts)
    return y_TD


def _launch(kernel: Any, x: Tensor, y: Tensor, ids_TK: Tensor, ids_SK: Tensor, num_experts: int) -> None:
    (tokens, top_k), width = ids_TK.shape, x.shape[1]
    shared = symmetric.arena(tokens * width * x.element_size() + SIGN, x.device)
    bits = TRANSFERRED[x.dtype]
    kernel[(min(tokens, MOST_PROGRAMS),)](
        x.view(bits),
        y.view(bits),
        ids_TK.contiguous(),
        ids_SK.contiguous(),
        shared.bases,
        shared.epochs,
        shared.rank,
        tokens,
        shared.slot // x.element_size(),
        num_experts // shared.ranks,
        RANKS=shared.ranks,
        FLOAT=FLOATS[x.dtype],
        K=top_k,
        CHOICES=power_of_two(top_k),
        D=width,
        WIDTH=power_of_two(width),
        MOST_PROGRAMS=symmetric.MOST_PROGRAMS,
        **warps(power_of_two(width)),
        **overlap(x.device),
    )


@triton.jit
def _chosen(ids, row, K: tl.constexpr, CHOICES: tl.constexpr):
    choice = tl.arange(0, CHOICES)
    return tl.load(ids + row * K + choice, mask=choice < K, other=-1)


@triton.jit
def _goes_to(chosen, rank, each):
    """Whether rank has one of the experts."""
    return tl.max(((chosen >= rank * each) & (chosen < (rank + 1) * each)).to(tl.int32), 0) > 0


@triton.jit
def _signs(bases, half, rank, slot, x, RANKS: tl.constexpr):
    """Program 0 tells every rank that this one is here, and hears it from them."""
    if tl.program_id(0) == 0:
        at = slot - 8 + tl.arange(0, 8)
        for step in tl.static_range(1, RANKS):
            peer = (rank + step) % RANKS
            one = tl.full([8], 1, x.dtype.element_ty)
            send(slots_of(bases, peer, half + rank * slot, x) + at, one, at >= 0)
        for step in tl.static_range(1, RANKS):
            peer = (rank + step) % RANKS
            take(slots_of(bases, rank, half + peer * slot, x) + at, at >= 0, bases + RANKS)


@triton.jit(do_not_specialize=["rank", "tokens", "each"])
def _dispatch(
    x, y, ids, received, bases, epochs, rank, tokens, slot, each,
    RANKS: tl.constexpr, FLOAT: tl.constexpr, K: tl.constexpr, CHOICES: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, MOST_PROGRAMS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    follow(OVERLAPS)
    program, programs = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(epochs + program)
    half = (epoch & 1).to(tl.int64) * RANKS * slot
    own = slots_of(bases, rank, half, x)
    column = tl.arange(0, WIDTH)
    inside = column < D
    for row in range(program, tokens, programs):
        chosen = _chosen(ids, row, K, CHOICES)
        bits = tl.load(x + row * D + column, mask=inside, other=0)
        for step in tl.static_range(1, RANKS):
            peer = (rank + step) % RANKS
            if _goes_to(chosen, peer, each):
                send(slots_of(bases, peer, half + rank * slot, x) + row * D + column, bits, inside)
    for row in range(program, tokens, programs):
        for r in tl.static_range(RANKS):
            bits = tl.zeros([WIDTH], x.dtype.element_ty)
            if tl.max(_chosen(received, r * tokens + row, K, CHOICES), 0) >= 0:
                if r == rank:
                    bits = tl.load(x + row * D + column, mask=inside, other=0)
                else:
                    bits = take(own + r * slot + row * D + column, inside, bases + RANKS)
            tl.store(y + (r * tokens + row) * D + column, bits, mask=inside)
    _signs(bases, half, rank, slot, x, RANKS)
    advance(epochs, epoch, MOST_PROGRAMS)


@triton.jit(do_not_specialize=["rank", "tokens", "each"])
def _combine(
    x, y, ids, received, bases, epochs, rank, tokens, slot, each,
    RANKS: tl.constexpr, FLOAT: tl.constexpr, K: tl.constexpr, CHOICES: tl.constexpr, D: tl.constexpr,
    WIDTH: tl.constexpr, MOST_PROGRAMS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    follow(OVERLAPS)
    program, programs = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(epochs + program)
    half = (epoch & 1).to(tl.int64) * RANKS * slot
    own = slots_of(bases, rank, half, x)
    column = tl.arange(0, WIDTH)
    inside = column < D
    for row in range(program, tokens, programs):
        for step in tl.static_range(1, RANKS):
            peer = (rank + step) % RANKS
            if tl.max(_chosen(received, peer * tokens + row, K, CHOICES), 0) >= 0:
                bits = tl.load(x + (peer * tokens + row) * D + column, mask=inside, other=0)
                send(slots_of(bases, peer, half + rank * slot, x) + row * D + column, bits, inside)
    for row in range(program, tokens, programs):
        chosen = _chosen(ids, row, K, CHOICES)
        sums = tl.zeros([WIDTH], tl.float32)
        for r in tl.static_range(RANKS):
            if _goes_to(chosen, r, each):
                if r == rank:
                    bits = tl.load(x + (rank * tokens + row) * D + column, mask=inside, other=0)
                else:
                    bits = take(own + r * slot + row * D + column, inside, bases + RANKS)
                sums += bits.to(FLOAT, bitcast=True).to(tl.float32)
        added = sums.to(FLOAT).to(x.dtype.element_ty, bitcast=True)
        tl.store(y + row * D + column, added, mask=inside)
    _signs(bases, half, rank, slot, x, RANKS)
    advance(epochs, epoch, MOST_PROGRAMS)
