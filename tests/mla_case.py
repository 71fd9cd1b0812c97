"""Calls of mla_prefill and mla_decode with their answers in float64.

T query tokens · B rows · H heads · L latent features · R others · N blocks of P tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastkernels import kernels
from tests.gla_case import worst

# Sums in another order; the weights of 16-bit values are rounded to their dtype.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
SIZES = [(4, 32, 8), (1, 20, 3), (32, 16, 16), (5, 48, 16)]  # heads, latent, rest


@dataclass(frozen=True)
class MlaCase:
    q_THC: Tensor
    cache_NPC: Tensor
    query_starts_B1: Tensor
    seq_lens_B: Tensor
    block_tables_BM: Tensor
    latent: int
    scale: float

    def run(self, impl: str | None, is_decode: bool = False) -> Tensor:
        longest, rows = int(self.seq_lens_B.max()), (self.seq_lens_B, self.block_tables_BM)
        if is_decode:
            args = (self.q_THC, self.cache_NPC, *rows, self.scale, self.latent, longest)
            return kernels.mla_decode(*args, impl=impl)
        queries = int(self.query_starts_B1.diff().max())
        args = (self.q_THC, self.cache_NPC, self.query_starts_B1, *rows, self.scale, self.latent)
        return kernels.mla_prefill(*args, queries, longest, impl=impl)

    def answer(self) -> Tensor:
        found = []
        starts, flat = self.query_starts_B1.tolist(), self.cache_NPC.double().cpu().flatten(0, 1)
        size = self.cache_NPC.shape[1]
        for b, seq_len in enumerate(self.seq_lens_B.tolist()):
            table = self.block_tables_BM[b].tolist()
            entries = [flat[table[s // size] * size + s % size] for s in range(seq_len)]
            for i in range(starts[b], starts[b + 1]):
                seen = torch.stack(entries[: seq_len - (starts[b + 1] - i) + 1])
                weights = (self.q_THC[i].double().cpu() @ seen.T * self.scale).softmax(-1)
                found.append(weights @ seen[:, : self.latent])
        return torch.stack(found)

    def to(self, device: str) -> MlaCase:
        moved = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def make(
    rows: Sequence[tuple[int, int]],
    heads: int = 4,
    latent: int = 32,
    rest: int = 8,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> MlaCase:
    """rows: (query tokens, tokens in the cache with them). Entries of nobody are NaN."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

    blocks = [-(-seq // block_size) for _, seq in rows]
    order = torch.randperm(sum(blocks) + 2, generator=generator) + 1
    tables, at = torch.zeros(len(rows), max(1, *blocks, 1), dtype=torch.int32), 0
    cache = torch.full((sum(blocks) + 3, block_size, latent + rest), torch.nan, dtype=dtype)
    for b, (_, seq) in enumerate(rows):
        tables[b, : blocks[b]] = order[at : at + blocks[b]]
        for s in range(seq):
            cache[tables[b, s // block_size], s % block_size] = randn(latent + rest)
        at += blocks[b]
    starts = torch.tensor([0, *(n for n, _ in rows)]).cumsum(0).int()
    q_THC = randn(int(starts[-1]), heads, latent + rest)
    seq_lens = torch.tensor([seq for _, seq in rows], dtype=torch.int32)
    return MlaCase(q_THC, cache, starts, seq_lens, tables, latent, (latent + rest) ** -0.5)


def check(case: MlaCase, impl: str, is_decode: bool = False) -> None:
    o_THL = case.run(impl, is_decode)
    assert (o_THL.shape, o_THL.dtype) == ((*case.q_THC.shape[:2], case.latent), case.q_THC.dtype)
    assert o_THL.is_contiguous()
    assert worst(o_THL, case.answer()) <= TOLERANCE[o_THL.dtype]


def stored(impl: str, dtype: torch.dtype, device: str = "cpu", latent: int = 24, rest: int = 8) -> None:
    """Each token's entry lies at its slot, exactly; nothing else has changed."""
    packed = torch.randn(5, latent + rest + 3, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    cache = torch.full((4, 8, latent + rest), 7.0, device=device, dtype=dtype)
    slots = torch.tensor([30, 9, 8, 17, 24], device=device)
    kernels.store_latent(packed[:, :latent], packed[:, latent : latent + rest], cache, slots, impl=impl)
    flat = cache.flatten(0, 1)
    assert torch.equal(flat[slots], packed[:, : latent + rest])
    others = [slot for slot in range(32) if slot not in slots.tolist()]
    assert (flat[others] == 7).all()
