"""Problems for cross_attention, with their answers by the plain formula in float64.

B rows of the step · R rows of the pools · T query tokens · S keys of each row · H heads · K head dim
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from tests.encoder_cases import limit_of, worst_error


@dataclass(frozen=True)
class CrossCase:
    """Arguments of cross_attention, the answer, and the relative L2 error that a token may have."""

    q_THK: Tensor
    k_RSHK: Tensor
    v_RSHK: Tensor
    query_starts_B1: Tensor
    rows_B: Tensor
    scale: float
    max_query_len: int
    answer_THK: Tensor
    limit: float

    @property
    def args(self) -> tuple:
        return tuple(vars(self).values())[:-2]

    def on(self, device: str) -> CrossCase:
        names = ("q_THK", "k_RSHK", "v_RSHK", "query_starts_B1", "rows_B")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def check(self, o_THK: Tensor) -> None:
        assert o_THK.shape == self.answer_THK.shape
        assert o_THK.dtype == self.q_THK.dtype
        assert o_THK.is_contiguous()
        error = worst_error(o_THK.cpu(), self.answer_THK)
        assert error <= self.limit, f"error {error:.3g} above {self.limit:.3g}"


def cross_case(
    query_lens: list[int],
    keys: int,
    num_heads: int = 3,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> CrossCase:
    """Rows in a random order; the pools' other rows, and the neighbours of the query, are NaN."""
    generator = torch.Generator().manual_seed(seed)
    count = len(query_lens) + 3
    rows_B = (torch.randperm(count - 1, generator=generator) + 1)[: len(query_lens)]
    tokens = sum(query_lens)
    whole = torch.full((tokens, 2, num_heads, head_dim), torch.nan, dtype=dtype)
    whole[:, 1] = 2 * torch.randn(tokens, num_heads, head_dim, generator=generator)
    k, v = (torch.full((count, keys, num_heads, head_dim), torch.nan, dtype=dtype) for _ in range(2))
    for pool in (k, v):
        pool[rows_B] = torch.randn(len(rows_B), keys, num_heads, head_dim, generator=generator).to(dtype)
    q, scale = whole[:, 1], head_dim**-0.5
    row_T = rows_B.repeat_interleave(torch.tensor(query_lens))

    def plain(precision: torch.dtype) -> Tensor:
        k_TSHK, v_TSHK = (pool[row_T].to(precision) for pool in (k, v))
        scores_TSH = (k_TSHK * q[:, None].to(precision)).sum(-1) * scale
        return (scores_TSH.softmax(1)[..., None] * v_TSHK).sum(1)

    answer = plain(torch.float64)
    limit = limit_of(dtype, answer, plain)
    starts = torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32)
    return CrossCase(q, k, v, starts, rows_B, scale, max(query_lens), answer, limit)
