"""Tokens to the ranks that have their experts, and what those make of them back (kernels/group.py).

    rank d has the experts [d E/R, (d + 1) E/R)
    ep_dispatch     x'[r T + t] = x_r[t], ids'[r T + t] = ids_r[t] - d E/R, weights'[r T + t] = weights_r[t]
                    on rank d, where it has the expert; else 0, -1 and 0
    ep_combine      y[t] = sum over the ranks d that got row t of x'_d[r T + t]         on rank r

R ranks · T tokens of each · k experts of a token · E experts · D hidden. An id of -1 is nobody's: a rank with
fewer tokens fills up with them. So shapes are the same on all ranks and in every step, and a graph can be
captured, while only rows that are needed travel. Sums are taken in the order of ranks, in at least float32.

With use_fp8 rows travel as float8 (e4m3), each GROUP of elements over its largest magnitude / 448, and come
out in the dtype of x.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastkernels.kernels.all_gather import all_gather
from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.group import group
from fastkernels.kernels.reduce_scatter import divided, reduce_scatter
from fastkernels.kernels.work import Tally

GROUP, LARGEST, LEAST = 128, 448.0, 1e-10
Gather = Callable[[Tensor], Tensor]
Dispatched = tuple[Tensor, Tensor, Tensor]


def _gathered(x: Tensor) -> Tensor:
    return torch.cat(group().gather(x))


def quantized(x_TD: Tensor) -> tuple[Tensor, Tensor]:
    """float8 [T, D], and a scale [T, D / GROUP] for each group."""
    wide = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32)).unflatten(1, (-1, GROUP))
    scale_TG = wide.abs().amax(-1).clamp_min(LEAST) / LARGEST
    return (wide / scale_TG[..., None]).to(torch.float8_e4m3fn).flatten(1), scale_TG


def dequantized(x_TD: Tensor, scale_TG: Tensor, dtype: torch.dtype) -> Tensor:
    return (x_TD.to(scale_TG.dtype).unflatten(1, (-1, GROUP)) * scale_TG[..., None]).flatten(1).to(dtype)


def here_of(ids: Tensor, num_experts: int) -> Tensor:
    """Ids as this rank counts its own experts, -1 where they are not its own."""
    each = num_experts // group().size
    own = ids - group().rank * each
    return torch.where((own >= 0) & (own < each), own, -1).to(torch.int32)


def _dispatch(gather: Gather) -> Callable[..., Dispatched]:
    """Everything to everybody, who drop what is not theirs."""

    def run(x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, num_experts: int, use_fp8: bool) -> Dispatched:
        ids_SK = here_of(gather(ids_TK), num_experts)
        weights_SK = gather(weights_TK) * (ids_SK >= 0)
        if use_fp8:
            bytes_TD, scale_TG = quantized(x_TD)
            bytes_SD = gather(bytes_TD.view(torch.uint8)).view(bytes_TD.dtype)
            x_SD = dequantized(bytes_SD, gather(scale_TG), x_TD.dtype)
        else:
            x_SD = gather(x_TD)
        return x_SD.masked_fill((ids_SK < 0).all(1, keepdim=True), 0), ids_SK, weights_SK

    return run


def _combine(gather: Gather, scatter: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(x_SD: Tensor, ids_TK: Tensor, num_experts: int, received_SK: Tensor | None) -> Tensor:
        if received_SK is None:
            received_SK = here_of(gather(ids_TK), num_experts)
        return scatter(x_SD.masked_fill((received_SK < 0).all(1, keepdim=True), 0))

    return run


def _fake_dispatch(x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, *_: object) -> Dispatched:
    rows = group().size * x_TD.shape[0]
    given = (x_TD, ids_TK, weights_TK)
    x_SD, ids_SK, weights_SK = (one.new_empty((rows, one.shape[1])) for one in given)
    return x_SD, ids_SK, weights_SK


def _work_dispatch(
    tally: Tally, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, num_experts: int, use_fp8: bool
) -> None:
    """At the least the ids of all: how many rows travel is for the routing to say."""
    tally.received += (group().size - 1) * ids_TK.numel() * ids_TK.element_size()


_ep_dispatch = Kernel(
    "ep_dispatch",
    "(Tensor x, Tensor topk_ids, Tensor topk_weights, int num_experts, bool use_fp8) "
    "-> (Tensor, Tensor, Tensor)",
    _dispatch(_gathered),
    fake=_fake_dispatch,
    implementations=(
        Implementation("parts", _dispatch(lambda x: all_gather(x, 0)), devices=("cpu", "cuda")),
        Implementation("triton", f"{__name__}_triton"),
    ),
    rows=lambda x_TD, *_: x_TD.shape[0],
    work=_work_dispatch,
)

_ep_combine = Kernel(
    "ep_combine",
    "(Tensor x, Tensor topk_ids, int num_experts, Tensor? received_ids) -> Tensor",
    _combine(_gathered, lambda x: registered["reduce_scatter"].reference(x, 0)),
    fake=lambda x_SD, ids_TK, *_: x_SD.new_empty((ids_TK.shape[0], x_SD.shape[1])),
    implementations=(
        Implementation(
            "parts",
            _combine(lambda x: all_gather(x, 0), lambda x: reduce_scatter(x, 0)),
            devices=("cpu", "cuda"),
        ),
        Implementation("triton", f"{__name__}_triton"),
    ),
    rows=lambda x_SD, ids_TK, *_: ids_TK.shape[0],
)


def ep_dispatch(
    x_TD: Tensor,
    ids_TK: Tensor,
    weights_TK: Tensor,
    num_experts: int,
    use_fp8: bool = False,
    *,
    impl: str | None = None,
) -> Dispatched:
    """(rows [R T, D], ids [R T, k] int32, weights [R T, k]) of x [T, D], ids [T, k] int32, weights [T, k].

    A collective: every rank of the group must call it, with as many tokens; none is allowed. Raises
    KernelError when `impl` cannot serve the call, RuntimeError without a group, ValueError where the ranks do
    not divide the experts, or where with use_fp8 GROUP does not divide D.
    """
    divided(num_experts, "experts")
    if use_fp8 and x_TD.shape[1] % GROUP:
        raise ValueError(f"Rows of {x_TD.shape[1]} elements are no whole groups of {GROUP}, as use_fp8 needs")
    return _ep_dispatch(x_TD, ids_TK, weights_TK, num_experts, use_fp8, impl=impl)


def ep_combine(
    x_SD: Tensor,
    ids_TK: Tensor,
    num_experts: int,
    received_SK: Tensor | None = None,
    *,
    impl: str | None = None,
) -> Tensor:
    """[R T, D], ids [T, k] as they were dispatched -> [T, D]. received: the ids that ep_dispatch returned, if
    they are at hand. Rows that this rank did not get do not count.

    A collective, with errors as ep_dispatch; ValueError where x does not have R T rows.
    """
    divided(num_experts, "experts")
    if x_SD.shape[0] != group().size * ids_TK.shape[0]:
        raise ValueError(
            f"{group().size} ranks with {ids_TK.shape[0]} tokens do not have {x_SD.shape[0]} rows"
        )
    return _ep_combine(x_SD, ids_TK, num_experts, received_SK, impl=impl)
