"""Products that exchange while they multiply, over memory that the GPUs share.

    gemm_reduce_scatter     the product writes each rank's rows into that rank's memory, its own last: without
                            a copy, and without a processor but the product's
    all_gather_gemm         copy engines fetch the others' rows while the rows that are here are multiplied
    gemm_all_reduce         as gemm_reduce_scatter, by pieces of the rows: copy engines fetch the sums of one
                            while the next is multiplied

Whoever uses the workspace ends with a barrier: it is free when a call begins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastkernels.kernels import checks, symmetric
from fastkernels.kernels.group import group
from fastkernels.kernels.launch import ceil_div

ROWS_OF_A_PIECE = 1024  # of gemm_all_reduce, for each rank: a product of fewer leaves processors idle
# Of each product: fewer fill no tile. gemm_all_reduce also goes through three barriers
LEAST_ROWS = {"all_gather_gemm": 128, "gemm_reduce_scatter": 128, "gemm_all_reduce": 512}


def unsupported(kernel: str, x: Tensor, weight_NK: Tensor) -> str | None:
    ranks, rows = group().size, x.shape[0]
    parts = 1 if kernel == "all_gather_gemm" else ranks
    if rows < LEAST_ROWS[kernel] * parts:
        return f"splits {rows} rows into {parts} products, which are too small to be worth it"
    if reason := checks.not_half(x, weight_NK) or checks.not_aligned(x, weight_NK):
        return reason
    if kernel == "all_gather_gemm":
        return symmetric.unsupported_workspace(x.numel() * x.element_size())
    pieces = _pieces(rows) if kernel == "gemm_all_reduce" else 1
    return symmetric.unsupported_workspace(
        math.prod(_slots(pieces, rows, weight_NK.shape[0])) * x.element_size()
    )


def gemm_reduce_scatter(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    here, each = group(), x_TK.shape[0] // group().size
    shape = (here.size, each, weight_NK.shape[0])
    _, handle = symmetric.workspace(math.prod(shape) * x_TK.element_size(), x_TK.device)
    for step in range(1, here.size + 1):
        to = (here.rank + step) % here.size
        slots_RPN = handle.get_buffer(to, shape, x_TK.dtype)
        torch.mm(x_TK[to * each : (to + 1) * each], weight_NK.T, out=slots_RPN[here.rank])
    handle.barrier()
    y_PN = _added(handle.get_buffer(here.rank, shape, x_TK.dtype))
    handle.barrier()
    return y_PN


def _added(slots_RPN: Tensor) -> Tensor:
    return slots_RPN[0] + slots_RPN[1] if len(slots_RPN) == 2 else slots_RPN.sum(0)


def all_gather_gemm(x_PK: Tensor, weight_NK: Tensor) -> Tensor:
    here, each = group(), x_PK.shape[0]
    _, handle = symmetric.workspace(x_PK.numel() * x_PK.element_size(), x_PK.device)
    main, side = torch.cuda.current_stream(x_PK.device), symmetric.side_stream(x_PK.device)
    others = [(here.rank + step) % here.size for step in range(1, here.size)]
    fetched = {other: torch.empty_like(x_PK) for other in others}
    there = {other: torch.cuda.Event() for other in others}
    y_TN = x_PK.new_empty((here.size * each, weight_NK.shape[0]))
    side.wait_stream(main)
    with torch.cuda.stream(side):
        handle.get_buffer(here.rank, x_PK.shape, x_PK.dtype).copy_(x_PK)
        handle.barrier()
        for other in others:
            fetched[other].copy_(handle.get_buffer(other, x_PK.shape, x_PK.dtype))
            there[other].record(side)
        handle.barrier()
    torch.mm(x_PK, weight_NK.T, out=y_TN[here.rank * each : (here.rank + 1) * each])
    for other in others:
        main.wait_event(there[other])
        torch.mm(fetched[other], weight_NK.T, out=y_TN[other * each : (other + 1) * each])
    main.wait_stream(side)
    return y_TN


def gemm_all_reduce(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    (tokens, _), width = x_TK.shape, weight_NK.shape[0]
    here, pieces = group(), _pieces(tokens)
    main, side = torch.cuda.current_stream(x_TK.device), symmetric.side_stream(x_TK.device)
    shape = _slots(pieces, tokens, width)
    _, handle = symmetric.workspace(math.prod(shape) * x_TK.element_size(), x_TK.device)
    slots = [handle.get_buffer(rank, shape, x_TK.dtype) for rank in range(here.size)]
    others = [(here.rank + step) % here.size for step in range(1, here.size)]
    y_TN = x_TK.new_empty((tokens, width))
    for piece, (x_PK, y_PN) in enumerate(
        zip(*(one.tensor_split(pieces) for one in (x_TK, y_TN)), strict=True)
    ):
        x_of, y_of = x_PK.tensor_split(here.size), y_PN.tensor_split(here.size)
        for rank in (*others, here.rank):
            torch.mm(x_of[rank], weight_NK.T, out=slots[rank][piece, here.rank, : len(x_of[rank])])
        side.wait_stream(main)
        with torch.cuda.stream(side):
            handle.barrier()
            own = y_of[here.rank]
            own.copy_(_added(slots[here.rank][piece, :, : len(own)]))
            slots[here.rank][piece, here.rank, : len(own)].copy_(own)
            handle.barrier()
            for rank in others:
                y_of[rank].copy_(slots[rank][piece, rank, : len(y_of[rank])])
    with torch.cuda.stream(side):
        handle.barrier()
    main.wait_stream(side)
    return y_TN


def _slots(pieces: int, tokens: int, width: int) -> tuple[int, int, int, int]:
    """What a rank has of memory: for its rows of each piece, one from every rank."""
    ranks = group().size
    return pieces, ranks, ceil_div(tokens, pieces * ranks), width


def _pieces(tokens: int) -> int:
    """Of gemm_all_reduce: as many as leave each rank's rows of a piece enough for a product."""
    return max(1, tokens // (group().size * ROWS_OF_A_PIECE))
