"""Cosine attention inside the windows of a feature map, shifted or not, channels last (Swin V2).

    s[i, j] = scale[h] q_i . k_j / (max(|q_i|, 1e-12) max(|k_j|, 1e-12)) + table[h, place(i, j)] + mask[i, j]
    o_i = sum_j softmax_j(s[i, j]) v_j                                           i, j: places of one window

B images · Y, X rows and columns · H heads of K features · C = H K · W rows and columns of a window · N = W W.

The map [B, Y, X, 3C] holds q, k, v of each pixel, all heads of one behind the other. It is rolled by
(-shift, -shift), then extended at its ends to a multiple of W by pixels whose q, k, v are `filler`: they are
keys like others. place(i, j) counts rows and columns of query less key from (-(W-1), -(W-1)) on, 2 W - 1 of
each. mask is -100 where, of a shifted map, i and j lie in different regions: along each axis of the extended
length n these are [0, n - W), [n - W, n - shift) and [n - shift, n). The result lies where the queries were.

In at least float32, rounded to the dtype of the map; an implementation may round the weights, too, and what
it multiplies.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.work import Tally

EPS = 1e-12
APART = -100.0


def extended(length: int, window: int) -> int:
    """The next multiple of the window."""
    return -(-length // window) * window


def _windows(map_BYXC: Tensor, filler_C: Tensor, window: int, shift: int) -> Tensor:
    """[B, windows, N, C]"""
    _, rows, columns, channels = map_BYXC.shape
    rolled_BYXC = map_BYXC.roll((-shift, -shift), (1, 2)) if shift else map_BYXC
    high, wide = extended(rows, window), extended(columns, window)
    if (high, wide) != (rows, columns):
        whole_BYXC = filler_C.expand(len(map_BYXC), high, wide, channels).clone()
        whole_BYXC[:, :rows, :columns] = rolled_BYXC
        rolled_BYXC = whole_BYXC
    parts_BYWXWC = rolled_BYXC.unflatten(2, (-1, window)).unflatten(1, (-1, window))
    return parts_BYWXWC.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _joined(windows_BMNC: Tensor, rows: int, columns: int, window: int, shift: int) -> Tensor:
    """[B, rows, columns, C], the inverse."""
    high, wide = (extended(length, window) // window for length in (rows, columns))
    parts_BYXWWC = windows_BMNC.unflatten(2, (window, window)).unflatten(1, (high, wide))
    whole_BYXC = parts_BYXWWC.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    kept_BYXC = whole_BYXC[:, :rows, :columns]
    return kept_BYXC.roll((shift, shift), (1, 2)) if shift else kept_BYXC


def places(window: int, device: torch.device) -> Tensor:
    """int64 [N, N]: place(i, j) in a head's table."""
    at_N = torch.arange(window * window, device=device)
    row_N, column_N = at_N // window, at_N % window
    down_NN, right_NN = (x_N[:, None] - x_N + window - 1 for x_N in (row_N, column_N))
    return down_NN * (2 * window - 1) + right_NN


def _mask(rows: int, columns: int, window: int, shift: int, like: Tensor) -> Tensor:
    """[windows, 1, N, N]: 0 or -100."""
    lengths = [extended(length, window) for length in (rows, columns)]
    down_Y, right_X = (
        (at >= length - window).long() + (at >= length - shift).long()
        for length in lengths
        for at in (torch.arange(length, device=like.device),)
    )
    label_1YX1 = (3 * down_Y[:, None] + right_X)[None, ..., None]
    label_MN = _windows(label_1YX1, label_1YX1[0, 0, 0], window, 0)[0, ..., 0]
    is_apart_MNN = label_MN[:, :, None] != label_MN[:, None, :]
    return (is_apart_MNN[:, None] * APART).to(like.dtype)


def _heads(qkv_BYXP: Tensor, filler_P: Tensor, heads: int, window: int, shift: int) -> list[Tensor]:
    """q, k, v [B, windows, H, N, K]"""
    windows_BMNP = _windows(qkv_BYXP, filler_P, window, shift)
    return list(windows_BMNP.unflatten(-1, (3, heads, -1)).permute(3, 0, 1, 4, 2, 5))


def _reference(
    qkv_BYXP: Tensor, filler_P: Tensor, scale_H: Tensor, table_HE: Tensor, window: int, shift: int
) -> Tensor:
    dtype = torch.promote_types(qkv_BYXP.dtype, torch.float32)
    rows, columns = qkv_BYXP.shape[1:3]
    q, k, v = _heads(qkv_BYXP.to(dtype), filler_P.to(dtype), len(scale_H), window, shift)
    q, k = (x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=EPS) for x in (q, k))
    scores = q @ k.transpose(-1, -2) * scale_H.to(dtype)[:, None, None]
    scores = scores + table_HE.to(dtype)[:, places(window, q.device)]
    if shift:
        scores = scores + _mask(rows, columns, window, shift, scores)
    o_BMNC = (scores.softmax(-1) @ v).transpose(2, 3).flatten(3)
    return _joined(o_BMNC, rows, columns, window, shift).to(qkv_BYXP.dtype).contiguous()


def _torch(
    qkv_BYXP: Tensor, filler_P: Tensor, scale_H: Tensor, table_HE: Tensor, window: int, shift: int
) -> Tensor:
    """scaled_dot_product_attention of copies: windows are its batch, what is added to scores its mask."""
    images, rows, columns, _ = qkv_BYXP.shape
    q, k, v = _heads(qkv_BYXP, filler_P, len(scale_H), window, shift)
    dtype = q.dtype
    q = (F.normalize(q.float() if dtype.itemsize == 2 else q, dim=-1) * scale_H[:, None, None]).to(dtype)
    k = F.normalize(k.float() if dtype.itemsize == 2 else k, dim=-1).to(dtype)
    added_MHNN = table_HE[None, :, places(window, q.device)]
    if shift:
        added_MHNN = added_MHNN + _mask(rows, columns, window, shift, table_HE)
    added = added_MHNN.to(dtype).expand(images, q.shape[1], -1, -1, -1).flatten(0, 1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    o_BMHNK = F.scaled_dot_product_attention(q, k, v, added, scale=1.0).unflatten(0, (images, -1))
    return _joined(o_BMHNK.transpose(2, 3).flatten(3), rows, columns, window, shift).contiguous()


def _work(
    tally: Tally,
    qkv_BYXP: Tensor,
    filler_P: Tensor,
    scale_H: Tensor,
    table_HE: Tensor,
    window: int,
    shift: int,
) -> None:
    """Queries that fill a window up need no answer, keys that do have a weight."""
    tally.multiply(qkv_BYXP, 4 * qkv_BYXP.numel() // 3 * window**2)


_window_attention = Kernel(
    "window_attention",
    "(Tensor qkv, Tensor filler, Tensor scale, Tensor table, int window, int shift) -> Tensor",
    _reference,
    fake=lambda qkv_BYXP, *_: qkv_BYXP.new_empty((*qkv_BYXP.shape[:-1], qkv_BYXP.shape[-1] // 3)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("torch", _torch, devices=("cpu", "cuda")),
    ),
    rows=lambda qkv_BYXP, *_: qkv_BYXP.numel() // qkv_BYXP.shape[-1],
    work=_work,
)


def window_attention(
    qkv_BYXP: Tensor,
    filler_P: Tensor,
    scale_H: Tensor,
    table_HE: Tensor,
    window: int,
    shift: int,
    *,
    impl: str | None = None,
) -> Tensor:
    """[B, Y, X, C], contiguous, in the dtype of qkv [B, Y, X, 3C], which is that of filler [3C].

    scale [H] and table [H, (2 W - 1)^2] are at least float32. Raises KernelError when `impl` cannot serve the
    call, ValueError where heads, table and window do not fit each other, and for a shift beyond a window.
    """
    heads, entries = table_HE.shape
    if entries != (2 * window - 1) ** 2 or len(scale_H) != heads or qkv_BYXP.shape[-1] % (3 * heads):
        raise ValueError(
            f"a table of {list(table_HE.shape)}, {len(scale_H)} scales and {qkv_BYXP.shape[-1]} channels of "
            f"q, k, v do not fit windows of {window} x {window}"
        )
    if not 0 <= shift < window:
        raise ValueError(f"a shift of {shift} is not within windows of {window} x {window}")
    return _window_attention(qkv_BYXP, filler_P, scale_H, table_HE, window, shift, impl=impl)
