"""all_reduce_norm in Triton, over memory that the GPUs share: a program sends a row and normalises its sum.

How rows travel without barriers: exchange_triton.py. A rank receives R - 1 times x.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastkernels.kernels import checks, exchange_triton, symmetric
from fastkernels.kernels.exchange_triton import FLOATS, TRANSFERRED, advance, send, slots_of, take
from fastkernels.kernels.group import group
from fastkernels.kernels.launch import power_of_two, warps
from fastkernels.kernels.overlap import follow, overlap

WIDEST, MOST_PROGRAMS = 16384, 128


def unsupported(kernel: str, x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float) -> str | None:
    if reason := exchange_triton.unsupported("all_reduce", x_TD):
        return reason
    if exchange_triton.in_two_steps(x_TD, group().size):
        return "every rank would receive more than in two steps"
    if residual_TD.dtype not in (x_TD.dtype, torch.float32):
        return f"adds a residual of the dtype of x or float32, not {residual_TD.dtype}"
    if x_TD.shape[-1] > WIDEST or x_TD.shape[-1] * x_TD.element_size() % checks.VECTOR_BYTES:
        return f"needs rows of up to {WIDEST} elements and of a multiple of {checks.VECTOR_BYTES} bytes"
    return checks.not_alike(x_TD, weight_D)


def all_reduce_norm(x_TD: Tensor, residual_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x_TD, residual_TD, weight_D = x_TD.contiguous(), residual_TD.contiguous(), weight_D.contiguous()
    shared = symmetric.arena(x_TD.numel() * x_TD.element_size(), x_TD.device)
    bits, width = TRANSFERRED[x_TD.dtype], x_TD.shape[-1]
    tokens = x_TD.numel() // width
    y_TD, sum_TD = torch.empty_like(x_TD), torch.empty_like(residual_TD)
    programs = min(tokens, MOST_PROGRAMS)
    _kernel[(programs,)](
        x_TD.view(bits),
        residual_TD,
        weight_D,
        y_TD,
        sum_TD,
        shared.bases,
        shared.epochs,
        shared.rank,
        tokens,
        shared.slot // x_TD.element_size(),
        eps,
        RANKS=shared.ranks,
        FLOAT=FLOATS[x_TD.dtype],
        D=width,
        WIDTH=power_of_two(width),
        LAG=1 if tokens > programs else 0,
        MOST_PROGRAMS=symmetric.MOST_PROGRAMS,
        **warps(power_of_two(width)),
        **overlap(x_TD.device),
    )
    return y_TD, sum_TD


@triton.jit(do_not_specialize=["rank", "tokens"])
def _kernel(
    x, residual, weight, y, total, bases, epochs, rank, tokens, slot, eps,
    RANKS: tl.constexpr, FLOAT: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, LAG: tl.constexpr,
    MOST_PROGRAMS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    follow(OVERLAPS)
    program, programs = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(epochs + program)
    half = (epoch & 1).to(tl.int64) * RANKS * slot
    own = slots_of(bases, rank, half, x)
    column = tl.arange(0, WIDTH)
    inside = column < D
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    for turn in range(program, tokens + LAG * programs, programs):
        if turn < tokens:
            at = turn * D + column
            bits = tl.load(x + at, mask=inside, other=0)
            for step in tl.static_range(1, RANKS):
                peer = (rank + step) % RANKS
                send(slots_of(bases, peer, half + rank * slot, x) + at, bits, inside)
        if turn >= LAG * programs:
            at = (turn - LAG * programs) * D + column
            sums = tl.zeros([WIDTH], tl.float32)
            for r in tl.static_range(RANKS):
                if r == rank:
                    bits = tl.load(x + at, mask=inside, other=0)
                else:
                    bits = take(own + r * slot + at, inside, bases + RANKS)
                sums += bits.to(FLOAT, bitcast=True).to(tl.float32)
            kept = sums.to(FLOAT).to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(
                tl.float32
            )
            kept = kept.to(total.dtype.element_ty)
            tl.store(total + at, kept, mask=inside)
            value = kept.to(tl.float32)
            root = tl.sqrt_rn(tl.sum(value * value, axis=0) * (1.0 / D) + eps)
            normal = (value * tl.div_rn(1.0, root)).to(FLOAT).to(tl.float32) * w
            tl.store(y + at, normal.to(FLOAT), mask=inside)
    advance(epochs, epoch, MOST_PROGRAMS)
