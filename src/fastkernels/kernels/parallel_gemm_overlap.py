"""Products that exchange while they multiply, over memory that the GPUs share.

    gemm_reduce_scatter     the product writes each rank's rows into that rank's memory, its own last: without
                            a copy, and without a processor but the product's
    all_gather_gemm         copy engines fetch the others' rows while the rows that are here are multiplied
    gemm_all_reduce         by pieces of the rows: few processors exchange one while the next is multiplied

Whoever uses the workspace ends with a barrier: it is free when a call begins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels import checks, exchange_triton, symmetric
from fastkernels.kernels.group import group

PIECES, PROGRAMS = 4, 32  # of gemm_all_reduce
LEAST_ROWS = 128  # of a piece: fewer fill no tile of a product


def unsupported(kernel: str, x: Tensor, weight_NK: Tensor) -> str | None:
    ranks, rows = group().size, x.shape[0]
    parts = {"all_gather_gemm": 1, "gemm_reduce_scatter": ranks, "gemm_all_reduce": PIECES}[kernel]
    if rows < LEAST_ROWS * parts:
        return f"splits {rows} rows into {parts} products, which fill no tile"
    if reason := checks.not_half(x, weight_NK) or checks.not_aligned(x, weight_NK):
        return reason
    if kernel == "gemm_all_reduce":
        piece = x.new_empty((-(-rows // PIECES), weight_NK.shape[0]), device="meta")
        return exchange_triton.unsupported("all_reduce", piece)
    wide = x.shape[1] if kernel == "all_gather_gemm" else weight_NK.shape[0]
    return symmetric.unsupported(x, rows * wide * x.element_size() // ranks)


def gemm_reduce_scatter(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    here, each = group(), x_TK.shape[0] // group().size
    shape = (here.size, each, weight_NK.shape[0])
    _, handle = symmetric.workspace(x_TK.shape[0] * shape[2] * x_TK.element_size(), x_TK.device)
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
    main, side = torch.cuda.current_stream(x_TK.device), symmetric.side_stream(x_TK.device)
    y_TN = x_TK.new_empty((x_TK.shape[0], weight_NK.shape[0]))
    products = []
    for piece_PK, sum_PN in zip(x_TK.chunk(PIECES), y_TN.chunk(PIECES), strict=True):
        products.append(piece_PK @ weight_NK.T)  # kept until the end: the side stream reads it
        side.wait_stream(main)
        with torch.cuda.stream(side):
            exchange_triton.all_reduce(products[-1], sum_PN, PROGRAMS)
    main.wait_stream(side)
    return y_TN
