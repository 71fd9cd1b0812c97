"""Calls of chunk_rwkv7 and recurrent_rwkv7, and of token_shift, as tests/mamba_cases has those of Mamba.

T tokens · B rows of the step · R rows of the pool · H heads · K dim of a head · D channels · M mixes
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.mamba_cases import StateCase, make_rows

LEAST = -0.6065306597126334  # of w


class HeadCase(StateCase):
    """tokens: r, w, k, v, kk, a."""

    def one(self, state: Tensor, tokens: list[Tensor], others: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        """S <- diag(exp w) S - (kk a) (kk^T S) + k v^T, o = S^T r, head by head."""
        states, out = [], []
        for s_KV, r, w, k, v, kk, a in zip(state, *tokens):
            removal_KK = torch.diag(w.exp()) - torch.outer(kk * a, kk)
            s_KV = removal_KK @ s_KV + torch.outer(k, v)
            states.append(s_KV)
            out.append(s_KV.T @ r)
        return torch.stack(out), torch.stack(states)


class ShiftCase(StateCase):
    """tokens: x; others: the mixes [M, D]."""

    @property
    def shape(self) -> torch.Size:
        mixes_MD = self.others[0]
        assert mixes_MD is not None
        return torch.Size((len(self.tokens[0]), *mixes_MD.shape))

    def one(self, state: Tensor, tokens: list[Tensor], others: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        (x_D,), (mixes_MD,) = tokens, others
        assert mixes_MD is not None
        return x_D + (state - x_D) * mixes_MD, x_D


def heads(
    query_lens: Sequence[int],
    heads: int = 2,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    w: float | None = None,
    a: float | None = None,
    seed: int = 0,
) -> HeadCase:
    """r and v are parts of a packed product. w, a: the same for all, where they are given."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens, shape = sum(query_lens), (heads, size)
    packed = randn(tokens, 3, *shape).to(dtype)
    log_decay = LEAST * torch.sigmoid(randn(tokens, *shape) * 2 - 2) if w is None else w
    rate = torch.sigmoid(randn(tokens, *shape)) if a is None else a
    log_decay, rate = (
        torch.as_tensor(x).expand(tokens, *shape).to(dtype).contiguous() for x in (log_decay, rate)
    )
    kk = F.normalize(randn(tokens, *shape), dim=-1).to(dtype)
    given = (packed[:, 0], log_decay, randn(tokens, *shape).to(dtype), packed[:, 2], kk, rate)
    rows = make_rows(query_lens, generator, *shape, size)
    return HeadCase(("chunk_rwkv7", "recurrent_rwkv7"), given, (), *rows)


def shift(
    query_lens: Sequence[int],
    channels: int = 24,
    mixes: int = 6,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ShiftCase:
    """x is the second half of a packed product."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(sum(query_lens), 2 * channels, generator=generator).to(dtype)
    mixes_MD = torch.rand(mixes, channels, generator=generator).to(dtype)
    state, *rest = make_rows(query_lens, generator, channels)
    names = ("token_shift", "token_shift_update")
    return ShiftCase(names, (packed[:, channels:],), (mixes_MD,), state.to(dtype).float(), *rest)


def layer(
    rows: int, heads: int = 2, size: int = 16, dtype: torch.dtype = torch.float32, first: bool = False
) -> tuple[list, Tensor]:
    """The arguments of rwkv7_step in its order, and its pool of states, of which some are NaN; `first`: of
    the first layer. The low-rank parts have widths of their own."""
    generator = torch.Generator().manual_seed(rows)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    d, widths = heads * size, {"w": 7, "v": 0 if first else 5, "a": 6, "g": 70}
    ups = [randn(d, widths[name]) * widths[name] ** -0.5 for name in ("w", "a", "g", "v") if widths[name]]
    projected = randn(rows, 3 * d + sum(widths.values()))
    v_first = None if first else randn(rows, 2 * d)[:, d:]
    biases = [randn(d) for _ in range(2 if first else 3)]
    state, rows_B, _ = make_rows((1,) * rows, generator, heads, size, size)
    given = [projected, v_first, ups, biases, randn(d), randn(d), randn(heads, size), randn(d), randn(d)]
    return [*given, state, rows_B, 6.4e-4], state


def wide(value):
    """The arguments of a call with floats in float64."""
    if isinstance(value, list):
        return [wide(one) for one in value]
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
