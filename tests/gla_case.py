"""Calls of chunk_gla and recurrent_gla with their answers by the recurrence in float64, one token at a time.

T tokens · B rows of the step · R rows of the pool · H heads · K key dim · V value dim
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels import kernels

# What sums in another order may cost: relative error of the worst token's output, or of the worst state.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 5e-3, torch.float16: 7e-4}


@dataclass(frozen=True)
class GlaCase:
    """A step of rows with `query_lens` tokens. Nobody's states are NaN; query, key and value are strided."""

    q_THK: Tensor
    k_THK: Tensor
    v_THV: Tensor
    gate_THK: Tensor | None
    state_RHKV: Tensor
    rows_B: Tensor
    query_starts_B1: Tensor
    scale: float

    @property
    def lens(self) -> list[int]:
        return self.query_starts_B1.diff().tolist()

    def run(self, impl: str | None, recurrent: bool = False) -> tuple[Tensor, Tensor]:
        """(output, states after the call); this case stays as it is."""
        state = self.state_RHKV.clone()
        args = (self.q_THK, self.k_THK, self.v_THV, self.gate_THK, state, self.rows_B)
        if recurrent:
            return kernels.recurrent_gla(*args, self.scale, impl=impl), state
        longest = max(self.lens, default=0)
        return kernels.chunk_gla(*args, self.query_starts_B1, self.scale, longest, impl=impl), state

    def answer(self) -> tuple[Tensor, Tensor]:
        """By the definition: S <- diag(exp g) S + k v^T, o = scale S^T q."""
        q, k, v = (x.double().cpu() for x in (self.q_THK, self.k_THK, self.v_THV))
        if self.gate_THK is None:
            g = torch.tensor([math.log1p(-(2.0 ** (-5 - h))) for h in range(q.shape[1])], dtype=q.dtype)
            g = g[:, None].expand(q.shape)
        else:
            g = self.gate_THK.double().cpu()
        state, o_THV = self.state_RHKV.double().cpu(), torch.zeros(v.shape, dtype=torch.float64)
        token = 0
        for row, length in zip(self.rows_B.tolist(), self.lens):
            for _ in range(length):
                for h in range(q.shape[1]):
                    grown = torch.diag(g[token, h].exp()) @ state[row, h]
                    state[row, h] = grown + torch.outer(k[token, h], v[token, h])
                    o_THV[token, h] = self.scale * state[row, h].T @ q[token, h]
                token += 1
        return o_THV, state

    def to(self, device: str) -> GlaCase:
        values = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in vars(self).items()}
        return GlaCase(**values)


def make(
    query_lens: Sequence[int],
    heads: int = 2,
    key_dim: int = 16,
    value_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    steepness: float | None = 1.0,
    seed: int = 0,
) -> GlaCase:
    """steepness: 1 for gates of about -0.05; at 300 some forget all, others nothing; None for no gates."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    tokens, keys, values = sum(query_lens), heads * key_dim, heads * value_dim
    packed = randn(tokens, 2 * keys + values + 16).to(dtype)
    q_THK, k_THK = (packed[:, i * keys : (i + 1) * keys].view(tokens, heads, key_dim) for i in (0, 1))
    v_THV = packed[:, 2 * keys : 2 * keys + values].view(tokens, heads, value_dim)
    gate_THK = None
    if steepness is not None:
        gate_THK = (torch.nn.functional.logsigmoid(randn(tokens, heads, key_dim) * steepness) / 16).to(dtype)
    order = torch.randperm(len(query_lens) + 2, generator=generator) + 1
    rows_B = order[: len(query_lens)]
    state = torch.full((len(query_lens) + 3, heads, key_dim, value_dim), torch.nan)
    state[rows_B] = randn(len(query_lens), heads, key_dim, value_dim).float()
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    return GlaCase(q_THK, k_THK, v_THV, gate_THK, state, rows_B, starts, key_dim**-0.5)


def check(case: GlaCase, impl: str, recurrent: bool = False) -> None:
    """Outputs and states of the step's rows are right, and no other row has changed."""
    (o, state), (expected_o, expected_state) = case.run(impl, recurrent), case.answer()
    assert (o.shape, o.dtype) == (case.v_THV.shape, case.q_THK.dtype)
    assert o.is_contiguous()
    rows = case.rows_B.cpu()
    others = [row for row in range(len(state)) if row not in rows.tolist()]
    assert state.cpu()[others].isnan().all(), "a state of nobody was written"
    tolerance = TOLERANCE[case.q_THK.dtype]
    assert worst(o, expected_o) <= tolerance
    assert worst(state.cpu()[rows], expected_state[rows]) <= tolerance


def worst(actual: Tensor, expected: Tensor) -> float:
    """The largest relative L2 error of an index of the first dimension."""
    if not len(expected):
        return 0.0
    difference = (actual.cpu().double() - expected).flatten(1).norm(dim=1)
    return float((difference / expected.flatten(1).norm(dim=1)).max())
