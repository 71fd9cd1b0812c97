"""Causal attention of the last tokens of a sequence over a window, and its gradient.

    P[i, j] = softmax_j(scale * q[i] . k[j])   p - W < j <= p,  p = S - T + i: the place of query i
    o[i] = sum_j P[i, j] v[j]

    dv[j] = sum_i P[i, j] do[i]                of the last T keys and values: the others are constants
    ds[i, j] = scale * P[i, j] (do[i] . v[j] - do[i] . o[i])
    dq[i] = sum_j ds[i, j] k[j],  dk[j] = sum_i ds[i, j] q[i]

T queries · S keys, of which the queries' own are the last T · W keys of a window, the query's own included ·
H heads · K head dim. Sums and exponentials in float32 (float64 stays float64), rounded once to the dtype of
the query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.work import Tally, visible_pairs

# Elements of scores at a time: 128 MiB in float64.
MAX_ELEMENTS = 2**24


def _tiles(q_THK: Tensor, k_SHK: Tensor, window: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Tiles of queries, the keys that one of them sees, and a bool [Q, S'] of those that each does."""
    (tokens, heads), keys = q_THK.shape[:2], k_SHK.shape[0]
    step = max(1, MAX_ELEMENTS // max(1, heads * keys))
    for start in range(0, tokens, step):
        stop = min(start + step, tokens)
        first, end = max(0, keys - tokens + start - window + 1), keys - tokens + stop
        place_Q1 = torch.arange(end - stop + start, end, device=q_THK.device)[:, None]
        key_S = torch.arange(first, end, device=q_THK.device)
        yield (
            slice(start, stop),
            slice(first, end),
            (key_S <= place_Q1) & (key_S > place_Q1 - window),
        )


def _reference(q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int) -> Tensor:
    dtype = torch.promote_types(q_THK.dtype, torch.float32)
    q, k, v = (x.to(dtype) for x in (q_THK, k_SHK, v_SHK))
    o_THK = q_THK.new_empty(q_THK.shape)
    for tile, seen, is_seen_QS in _tiles(q_THK, k_SHK, window):
        weights_HQS = _weights(q[tile], k[seen], is_seen_QS, scale)
        o_THK[tile] = torch.einsum("hqs,shk->qhk", weights_HQS, v[seen]).to(q_THK.dtype)
    return o_THK


def _weights(q_QHK: Tensor, k_SHK: Tensor, is_seen_QS: Tensor, scale: float) -> Tensor:
    """[H, Q, S]"""
    scores_HQS = torch.einsum("qhk,shk->hqs", q_QHK, k_SHK) * scale
    return scores_HQS.masked_fill_(~is_seen_QS, -torch.inf).softmax(-1)


def _reference_grad(
    do_THK: Tensor, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(q_THK.dtype, torch.float32)
    do, q, k, v = (x.to(dtype) for x in (do_THK, q_THK, k_SHK, v_SHK))
    dq_THK, dk_SHK, dv_SHK = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for tile, seen, is_seen_QS in _tiles(q_THK, k_SHK, window):
        weights_HQS = _weights(q[tile], k[seen], is_seen_QS, scale)
        dv_SHK[seen] += torch.einsum("hqs,qhk->shk", weights_HQS, do[tile])
        slopes_HQS = torch.einsum("qhk,shk->hqs", do[tile], v[seen])
        slopes_HQS -= (weights_HQS * slopes_HQS).sum(-1, keepdim=True)  # do . o
        slopes_HQS *= weights_HQS * scale
        dq_THK[tile] = torch.einsum("hqs,shk->qhk", slopes_HQS, k[seen])
        dk_SHK[seen] += torch.einsum("hqs,qhk->shk", slopes_HQS, q[tile])
    own = slice(len(k) - len(q), None)
    dq, dk, dv = (x.to(q_THK.dtype).contiguous() for x in (dq_THK, dk_SHK[own], dv_SHK[own]))
    return dq, dk, dv


def _seen(q_THK: Tensor, k_SHK: Tensor, window: int) -> Tensor:
    """[T, S]: 0 where a query sees a key, elsewhere -inf."""
    (tokens, *_), keys = q_THK.shape, k_SHK.shape[0]
    offset_TS = torch.arange(keys - tokens, keys)[:, None] - torch.arange(keys)
    is_seen_TS = (offset_TS >= 0) & (offset_TS < window)
    return torch.zeros(tokens, keys, dtype=q_THK.dtype).masked_fill_(~is_seen_TS, -torch.inf)


def _torch_unsupported(q_THK: Tensor, *_: Any) -> str | None:
    return None if q_THK.numel() else "has no answer for no tokens"


def _torch(q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q_THK, k_SHK, v_SHK))
    mask_TS = _seen(q_THK, k_SHK, window)
    return F.scaled_dot_product_attention(q, k, v, mask_TS, scale=scale)[0].transpose(0, 1).contiguous()


def _torch_grad(
    do_THK: Tensor, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What PyTorch's attention on a CPU calls, forward and backward: it has the gradients of all keys and
    values. Autograd itself does not run in inference mode."""
    do, q, k, v = (x.transpose(0, 1)[None] for x in (do_THK, q_THK, k_SHK, v_SHK))
    options = {"attn_mask": _seen(q_THK, k_SHK, window), "scale": scale}
    aten = torch.ops.aten
    o, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, **options)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    grads = backward(do, q, k, v, o, lse, 0.0, False, **options)
    dq, dk, dv = (x[0, :, -len(q_THK) :].transpose(0, 1).contiguous() for x in grads)
    return dq, dk, dv


def _fake_grad(do_THK: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq_THK, dk_THK, dv_THK = (do_THK.new_empty(do_THK.shape) for _ in range(3))
    return dq_THK, dk_THK, dv_THK


def _work(tally: Tally, q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int) -> None:
    _multiply(tally, 4, q_THK, k_SHK, window)


def _work_grad(tally: Tally, do_THK: Tensor, q_THK: Tensor, k_SHK: Tensor, *rest: Any) -> None:
    """Products of a (query, key) pair: scores, slopes and dq of all keys, dk and dv of the queries' own."""
    _multiply(tally, 6, q_THK, k_SHK, rest[-1])
    _multiply(tally, 4, q_THK, k_SHK[-len(q_THK) :], rest[-1])


def _multiply(tally: Tally, products: int, q_THK: Tensor, k_SHK: Tensor, window: int) -> None:
    tokens, heads, size = q_THK.shape
    tally.multiply(q_THK, products * heads * size * visible_pairs(tokens, len(k_SHK), window))


_sliding_attention = Kernel(
    "sliding_attention",
    "(Tensor query, Tensor key, Tensor value, float scale, int window) -> Tensor",
    _reference,
    fake=lambda q_THK, *_: q_THK.new_empty(q_THK.shape),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu",), unsupported=_torch_unsupported),
    ),
    rows=lambda q_THK, *_: q_THK.shape[0],
    work=_work,
)

_sliding_attention_grad = Kernel(
    "sliding_attention_grad",
    "(Tensor grad, Tensor query, Tensor key, Tensor value, float scale, int window) -> "
    "(Tensor, Tensor, Tensor)",
    _reference_grad,
    fake=_fake_grad,
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch_grad, devices=("cpu",), unsupported=_torch_unsupported),
    ),
    rows=lambda do_THK, *_: do_THK.shape[0],
    work=_work_grad,
)


def sliding_attention(
    q_THK: Tensor, k_SHK: Tensor, v_SHK: Tensor, scale: float, window: int, *, impl: str | None = None
) -> Tensor:
    """o [T, H, K] in the dtype of the query, contiguous.

    All have one dtype and may be strided views with a contiguous last dimension. Raises KernelError when
    `impl` cannot serve the call, ValueError where there are fewer keys than queries, or no window.
    """
    _require(q_THK, k_SHK, window)
    return _sliding_attention(q_THK, k_SHK, v_SHK, scale, window, impl=impl)


def sliding_attention_grad(
    do_THK: Tensor,
    q_THK: Tensor,
    k_SHK: Tensor,
    v_SHK: Tensor,
    scale: float,
    window: int,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), each [T, H, K] in the dtype of the query, contiguous: of the queries, and of the last T
    keys and values. do: the gradient of o; the rest as of sliding_attention, which it computes again. Raises
    as that does."""
    _require(q_THK, k_SHK, window)
    return _sliding_attention_grad(do_THK, q_THK, k_SHK, v_SHK, scale, window, impl=impl)


def _require(q_THK: Tensor, k_SHK: Tensor, window: int) -> None:
    if len(k_SHK) < len(q_THK):
        raise ValueError(f"{len(k_SHK)} keys for {len(q_THK)} queries: each query has a key of its own")
    if window < 1:
        raise ValueError(f"a window of {window} keys: it is at least the query's own")
