"""Attention problems over a poisoned paged cache, with their answer by the plain formula in float64.

B rows · T query tokens · H query heads · J key/value heads · K head dim · L keys of one row
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.helpers import make_tables

# Rounding of probabilities and of the output to 16 bits (half a unit in the last place each, and some luck
# less); float32 arithmetic of scores up to about 20 and sums of 1,000 terms; float64 likewise.
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6, torch.float64: 2e-14}


@dataclass(frozen=True)
class AttentionCase:
    """Arguments of prefill_attention (or decode_attention, where every query length is 1), and the answer."""

    query_THK: Tensor
    k_cache: Tensor
    v_cache: Tensor
    query_starts_B1: Tensor
    seq_lens_B: Tensor
    block_tables_BN: Tensor
    scale: float
    window: int | None
    max_query_len: int
    max_seq_len: int
    answer_THK: Tensor
    sinks_H: Tensor | None = None

    @property
    def prefill_args(self) -> tuple:
        lengths = (self.query_starts_B1, self.seq_lens_B, self.block_tables_BN)
        rest = (self.scale, self.window, self.max_query_len, self.max_seq_len)
        return self.query_THK, self.k_cache, self.v_cache, *lengths, *rest, *self._sinks

    @property
    def decode_args(self) -> tuple:
        lengths = (self.seq_lens_B, self.block_tables_BN)
        rest = (self.scale, self.window, self.max_seq_len)
        return self.query_THK, self.k_cache, self.v_cache, *lengths, *rest, *self._sinks

    @property
    def _sinks(self) -> tuple:
        return () if self.sinks_H is None else (self.sinks_H,)

    def on(self, device: str) -> AttentionCase:
        """The case with its tensors on a device; the query keeps its strides."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        packed = torch.full(
            (len(self.query_THK), self.query_THK.stride(0)), torch.nan, dtype=self.query_THK.dtype
        )
        query = packed.to(device)[:, : self.query_THK[:1].numel()].view(self.query_THK.shape)
        query.copy_(self.query_THK)
        return replace(self, **{**tensors, "query_THK": query})

    def check(self, o_THK: Tensor, units: float = 1.0) -> None:
        """Every token's output is right within `units` times the dtype's rounding (relative L2). Scores of
        wider heads are longer sums."""
        assert o_THK.shape == self.answer_THK.shape
        assert o_THK.dtype == self.query_THK.dtype
        assert o_THK.is_contiguous()
        longer = max(1.0, o_THK.shape[-1] / 256) ** 0.5 if o_THK.dtype == torch.float32 else 1.0
        error, limit = self.error(o_THK), units * longer * ROUNDING[o_THK.dtype]
        assert error <= limit, f"error {error:.3g} above {limit:.3g}"

    def error(self, o_THK: Tensor) -> float:
        """Worst relative L2 error of a token's output; NaN stays NaN; a token without keys counts as is."""
        difference = (o_THK.double() - self.answer_THK).flatten(1).norm(dim=1)
        size = self.answer_THK.flatten(1).norm(dim=1)
        return (difference / torch.where(size > 0, size, 1.0)).max().item()


def attention_case(
    query_lens: list[int],
    seq_lens: list[int],
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    window: int | None = None,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    spare_blocks: int = 3,
    free_behind_window: bool = True,
    sinks: bool = False,
) -> AttentionCase:
    """Everything that a kernel must not use is NaN: the null block, foreign blocks, slots behind a row's end
    and,
    as after an engine's release, whole blocks before the window of the row's first query."""
    generator = torch.Generator().manual_seed(seed)
    (num_heads, num_kv_heads), scale = heads, head_dim**-0.5
    num_blocks = sum(-(-length // block_size) for length in seq_lens) + 1 + spare_blocks
    table_BN = make_tables(seq_lens, block_size, num_blocks, generator)[0]
    if table_BN.shape[1] == 0:
        table_BN = torch.zeros(len(seq_lens), 1, dtype=torch.int32)
    # A graph's tables are as wide as its longest possible row; what lies behind a row's end is old and
    # meaningless.
    unused = torch.randint(0, num_blocks, (len(seq_lens), 2), generator=generator, dtype=torch.int32)
    table_BN = torch.cat((table_BN, unused), 1)

    caches = [
        torch.full((num_blocks, block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype) for _ in "kv"
    ]
    # The query is a slice of a packed qkv product: strided, its neighbours NaN.
    packed = torch.full((sum(query_lens), num_heads + 2, head_dim), torch.nan, dtype=dtype)
    query_THK = packed[:, :num_heads]
    query_THK.copy_(2 * torch.randn(query_THK.shape, generator=generator))

    sinks_H = (2 * torch.randn(num_heads, generator=generator) + 1).to(dtype) if sinks else None
    starts, answers = [0], []
    for row, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        starts.append(starts[-1] + query_len)
        keys_values = torch.randn(2, seq_len, num_kv_heads, head_dim, generator=generator).to(dtype)
        first = max(0, seq_len - query_len - window + 1) if window and free_behind_window else 0
        for n in range(first // block_size if query_len else 0, -(-seq_len // block_size)):
            block, tokens = table_BN[row, n], slice(n * block_size, min((n + 1) * block_size, seq_len))
            for cache, kept in zip(caches, keys_values, strict=True):
                cache[block, : tokens.stop - tokens.start] = kept[tokens]
        answers.append(_answer(query_THK[starts[-2] : starts[-1]], *keys_values, scale, window, sinks_H))

    return AttentionCase(
        query_THK,
        *caches,
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(seq_lens, dtype=torch.int32),
        table_BN,
        scale,
        window,
        max(query_lens),
        max(seq_lens),
        torch.cat(answers),
        sinks_H,
    ).on(device)


def _answer(
    query_QHK: Tensor,
    key_LJK: Tensor,
    value_LJK: Tensor,
    scale: float,
    window: int | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """One query and one head at a time over its own keys: no mask, no grouping, nothing of the kernels."""
    num_queries, num_heads, _ = query_QHK.shape
    seq_len, num_kv_heads, _ = key_LJK.shape
    answer = torch.zeros(query_QHK.shape, dtype=torch.float64)
    if seq_len == 0:
        return answer
    for i in range(num_queries):
        position = seq_len - num_queries + i
        seen = slice(max(0, position - window + 1) if window else 0, position + 1)
        for head in range(num_heads):
            shared = head // (num_heads // num_kv_heads)
            keys, values = key_LJK[seen, shared].double(), value_LJK[seen, shared].double()
            weights = (keys @ query_QHK[i, head].double() * scale).exp()
            sink = 0.0 if sinks_H is None else sinks_H[head].double().exp()
            answer[i, head] = weights @ values / (weights.sum() + sink)
    return answer
