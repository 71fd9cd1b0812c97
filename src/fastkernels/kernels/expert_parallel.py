"""The experts of a layer that the ranks of the group in flight share out: dispatch, experts, combine.

    rows, ids, weights = ep_dispatch(x, topk_ids, topk_weights)                                 ep_exchange
    z[s] = sum of weights[s, j] (act(rows[s] Wg_e^T) * (rows[s] Wu_e^T)) Wd_e^T over e = ids[s, j] >= 0
                                                                                                local_experts
    y = ep_combine(z, topk_ids)                                                                 ep_exchange

act: silu. Wg and Wu are one packed weight [E/R, 2F, D], gate first; Wd is [E/R, D, F]: a rank's own experts.
Rounded to the dtype of x as kernels/grouped_linear says, behind the sum of a rank's experts, and behind that
of ranks. `overlapped` takes the tokens in two halves: rows of one travel while the other's are multiplied.

T tokens of a rank · k experts of a token · S = R T rows · E experts · R ranks · D hidden · F intermediate
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastkernels.kernels import symmetric
from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.ep_exchange import ep_combine, ep_dispatch
from fastkernels.kernels.group import group, not_distributed
from fastkernels.kernels.grouped_linear import grouped_linear
from fastkernels.kernels.grouped_linear_glu import grouped_linear_glu
from fastkernels.kernels.moe_permute import moe_align, moe_sum

LEAST_TOKENS = 256  # of a half: fewer rows take as long as all of them, by the weights that they read
Experts = Callable[..., Tensor]


def _local(align: Callable, multiply_glu: Callable, multiply: Callable, add: Callable) -> Experts:
    """Slots that are nobody's lie behind those of all experts, and nothing is made of them."""

    def run(x_SD: Tensor, ids_SK: Tensor, weights_SK: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        experts, is_absent = w13.shape[0], ids_SK < 0
        order, starts = align(ids_SK.masked_fill(is_absent, experts), experts + 1)
        starts = starts[:-1].contiguous()
        active = multiply_glu(x_SD, w13, order, starts, "silu")
        y_ND = multiply(active, w2, order, starts, weights_SK.flatten())
        return add(y_ND.view(*ids_SK.shape, w2.shape[1]).masked_fill(is_absent[..., None], 0))

    return run


def _in_turn(dispatch: Callable, experts_of: Experts, combine: Callable) -> Callable[..., Tensor]:
    def run(
        x_TD: Tensor,
        weights_TK: Tensor,
        ids_TK: Tensor,
        w13: Tensor,
        w2: Tensor,
        num_experts: int,
        use_fp8: bool,
    ) -> Tensor:
        row_SD, ids_SK, weights_SK = dispatch(x_TD, ids_TK, weights_TK, num_experts, use_fp8)
        return combine(experts_of(row_SD, ids_SK, weights_SK, w13, w2), ids_TK, num_experts, ids_SK)

    return run


def _overlap_unsupported(x_TD: Tensor, *_: object) -> str | None:
    if reason := not_distributed():
        return reason
    if x_TD.shape[0] < 2 * LEAST_TOKENS:
        return f"splits {x_TD.shape[0]} tokens into halves, which are worth it from {LEAST_TOKENS} on"
    return None


def _overlapped(
    x_TD: Tensor, weights_TK: Tensor, ids_TK: Tensor, w13: Tensor, w2: Tensor, num_experts: int, use_fp8: bool
) -> Tensor:
    main, side = torch.cuda.current_stream(x_TD.device), symmetric.side_stream(x_TD.device)
    halves, kept, y = range(2), [], torch.empty_like(x_TD)
    x, weights, ids, sums = (one.chunk(2) for one in (x_TD, weights_TK, ids_TK, y))
    there = [torch.cuda.Event() for _ in halves]
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for half in halves:
            kept.append(ep_dispatch(x[half], ids[half], weights[half], num_experts, use_fp8))
            there[half].record(side)
    for half in halves:
        main.wait_event(there[half])
        row_SD, ids_SK, weights_SK = kept[half]
        z_SD = local_experts(row_SD, ids_SK, weights_SK, w13, w2)
        kept.append(z_SD)  # until both streams have met: each reads what the other's allocator gave
        side.wait_stream(main)
        with torch.cuda.stream(side):
            sums[half].copy_(ep_combine(z_SD, ids[half], num_experts, ids_SK))
    main.wait_stream(side)
    side.wait_stream(main)
    return y


_local_experts = Kernel(
    "local_experts",
    "(Tensor x, Tensor ids, Tensor weights, Tensor w13, Tensor w2) -> Tensor",
    _local(
        *(registered[n].reference for n in ("moe_align", "grouped_linear_glu", "grouped_linear", "moe_sum"))
    ),
    fake=lambda x_SD, *_: x_SD.new_empty(x_SD.shape),
    implementations=(
        Implementation(
            "parts", _local(moe_align, grouped_linear_glu, grouped_linear, moe_sum), devices=("cpu", "cuda")
        ),
    ),
    rows=lambda x_SD, *_: x_SD.shape[0],
)

_expert_parallel = Kernel(
    "expert_parallel",
    "(Tensor x, Tensor topk_weights, Tensor topk_ids, Tensor w13, Tensor w2, int num_experts, bool use_fp8) "
    "-> Tensor",
    _in_turn(
        registered["ep_dispatch"].reference, _local_experts.reference, registered["ep_combine"].reference
    ),
    fake=lambda x_TD, *_: x_TD.new_empty(x_TD.shape),
    implementations=(
        Implementation("parts", _in_turn(ep_dispatch, _local_experts, ep_combine), devices=("cpu", "cuda")),
        Implementation("overlapped", _overlapped, unsupported=_overlap_unsupported),
    ),
    rows=lambda x_TD, *_: x_TD.shape[0],
)


def local_experts(
    x_SD: Tensor, ids_SK: Tensor, weights_SK: Tensor, w13: Tensor, w2: Tensor, *, impl: str | None = None
) -> Tensor:
    """[S, D] in the dtype of x; ids [S, k] int32, each in [-1, E/R), weights [S, k] float32.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _local_experts(x_SD, ids_SK, weights_SK, w13, w2, impl=impl)


def expert_parallel(
    x_TD: Tensor,
    weights_TK: Tensor,
    ids_TK: Tensor,
    w13: Tensor,
    w2: Tensor,
    num_experts: int,
    use_fp8: bool = False,
    *,
    impl: str | None = None,
) -> Tensor:
    """[T, D] in the dtype of x; topk_weights [T, k] float32, topk_ids [T, k] int32, each in [-1, E).

    A collective: every rank of the group must call it, with as many tokens. Errors as ep_dispatch has, and a
    ValueError where this rank's weights are not E / R experts.
    """
    if w13.shape[0] * group().size != num_experts or w2.shape[0] != w13.shape[0]:
        own = f"{w13.shape[0]} and {w2.shape[0]}"
        raise ValueError(f"{group().size} ranks share out {num_experts} experts, and this one has {own}")
    return _expert_parallel(x_TD, weights_TK, ids_TK, w13, w2, num_experts, use_fp8, impl=impl)
