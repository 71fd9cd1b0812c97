"""Calls of causal_conv1d, selective_scan, ssd_scan and chunk_delta_rule with their answers in float64, one
token at a time.

T tokens · B rows of the step · R rows of the pool · C or I channels · K taps · N values of a channel's state
H heads of P channels · G groups · J heads of keys, K key dim, V value dim of the delta rule
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastkernels.kernels import registered

# What sums in another order may cost: relative error of the worst token's output, or of the worst state.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 5e-3, torch.float16: 7e-4}
# A chunk of the delta rule subtracts what it reads of a rounded state, and multiplies with the difference,
# rounded: 1.0e-3 was measured in float16, where states hardly decay.
CORRECTED = {torch.float32: 3e-6, torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3}


@dataclass(frozen=True)
class StateCase:
    """A step of rows with some tokens each. Nobody's states are NaN, tokens are views of packed products.

    kernels: of several tokens for each row, of one. tokens: arguments with a row for each token; others:
    those with none; state [R, ...].
    """

    kernels: tuple[str, str]
    tokens: tuple[Tensor, ...]
    others: tuple[Tensor | float | None, ...]
    state: Tensor
    rows_B: Tensor
    query_starts_B1: Tensor

    @property
    def lens(self) -> list[int]:
        return self.query_starts_B1.diff().tolist()

    @property
    def dtype(self) -> torch.dtype:
        return self.tokens[0].dtype

    def arguments(self, is_update: bool, state: Tensor) -> tuple:
        args = (*self.tokens, *self.others, state, self.rows_B)
        return args if is_update else (*args, self.query_starts_B1, max(self.lens, default=0))

    def run(self, impl: str | None, is_update: bool = False) -> tuple[Tensor, Tensor]:
        """(output, states after the call); this case stays as it is."""
        state = self.state.clone()
        y = registered[self.kernels[is_update]](*self.arguments(is_update, state), impl=impl)
        return y, state

    def part(self, start: int, end: int) -> StateCase:
        """Tokens `start` to `end` of a case with one row."""
        tokens = tuple(x[start:end] for x in self.tokens)
        starts = torch.tensor([0, end - start], dtype=torch.int32)
        return type(self)(self.kernels, tokens, self.others, self.state, self.rows_B, starts)

    @property
    def shape(self) -> torch.Size:
        """Of the output: that of the values, which of a delta rule are the third argument."""
        return self.tokens[2 if self.kernels[0] == "chunk_delta_rule" else 0].shape

    def one(self, state: Tensor, tokens: list[Tensor], others: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        """(output, state) of one token."""
        of_kernel = {
            "causal_conv1d": _convolved,
            "selective_scan": _scanned,
            "ssd_scan": _advanced,
            "chunk_delta_rule": _corrected,
        }
        return of_kernel[self.kernels[0]](state, tokens, others)

    def answer(self) -> tuple[Tensor, Tensor]:
        tokens, others = (
            [x.double().cpu() if isinstance(x, Tensor) else x for x in group]
            for group in (self.tokens, self.others)
        )
        state, y = self.state.double().cpu(), torch.zeros(self.shape, dtype=torch.float64)
        token = 0
        for row, length in zip(self.rows_B.tolist(), self.lens):
            for _ in range(length):
                y[token], state[row] = self.one(state[row], [x[token] for x in tokens], others)
                token += 1
        return y, state

    def to(self, device: str | torch.dtype) -> StateCase:
        def moved(x):
            if not isinstance(x, Tensor) or (isinstance(device, torch.dtype) and not x.is_floating_point()):
                return x
            return x.to(device)

        tokens, others = (tuple(moved(x) for x in group) for group in (self.tokens, self.others))
        state, rows, starts = (moved(x) for x in (self.state, self.rows_B, self.query_starts_B1))
        return type(self)(self.kernels, tokens, others, state, rows, starts)


def _convolved(state_PC: Tensor, tokens: list[Tensor], others: list[Tensor | None]) -> tuple[Tensor, Tensor]:
    (x_C,), (weight_CK, bias_C) = tokens, others
    inputs_KC = torch.cat((state_PC, x_C[None]))
    total_C = (inputs_KC * weight_CK.T).sum(0) + (0 if bias_C is None else bias_C)
    return total_C / (1 + torch.exp(-total_C)), inputs_KC[1:]


def _scanned(h_IN: Tensor, tokens: list[Tensor], others: list[Tensor]) -> tuple[Tensor, Tensor]:
    (u, delta, b, c, z), (a_log, d, bias) = tokens, others
    step_I = torch.log1p(torch.exp(delta + bias))
    h_IN = torch.exp(-step_I[:, None] * a_log.exp()) * h_IN + torch.outer(step_I * u, b)
    return (h_IN @ c + d * u) * z / (1 + torch.exp(-z)), h_IN


def _advanced(s_HPN: Tensor, tokens: list[Tensor], others: list[Tensor]) -> tuple[Tensor, Tensor]:
    (x_HP, dt_H, b_GN, c_GN), (a_log_H, d_H, bias_H) = tokens, others
    states, out, shared = [], [], len(x_HP) // len(b_GN)
    for h, s_PN in enumerate(s_HPN):
        step = torch.log1p(torch.exp(dt_H[h] + bias_H[h]))
        s_PN = torch.exp(-step * a_log_H[h].exp()) * s_PN + step * torch.outer(x_HP[h], b_GN[h // shared])
        out.append(s_PN @ c_GN[h // shared] + d_H[h] * x_HP[h])
        states.append(s_PN)
    return torch.stack(out), torch.stack(states)


def _corrected(s_HKV: Tensor, tokens: list[Tensor], others: list) -> tuple[Tensor, Tensor]:
    (q_JK, k_JK, v_HV, g_HG, b_H), (a_log_H, bias_HG, scale) = tokens, others
    states, out, shared = [], [], len(v_HV) // len(q_JK)
    for h, s_KV in enumerate(s_HKV):
        q_K, k_K = (x[h // shared] / (x[h // shared].square().sum() + 1e-6).sqrt() for x in (q_JK, k_JK))
        decay = torch.exp(-a_log_H[h].exp() * torch.log1p(torch.exp(g_HG[h] + bias_HG[h])))
        s_KV = torch.diag(decay.expand(len(k_K))) @ s_KV
        new_V = (v_HV[h] - s_KV.T @ k_K) / (1 + torch.exp(-b_H[h]))
        s_KV = s_KV + torch.outer(k_K, new_V)
        out.append(scale * s_KV.T @ q_K)
        states.append(s_KV)
    return torch.stack(out), torch.stack(states)


def make_rows(
    query_lens: Sequence[int], generator: torch.Generator, *shape: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A pool of states with some rows of nobody, the step's rows in it, and where their tokens start."""
    order = torch.randperm(len(query_lens) + 2, generator=generator) + 1
    rows_B = order[: len(query_lens)]
    state = torch.full((len(query_lens) + 3, *shape), torch.nan)
    state[rows_B] = torch.randn(len(query_lens), *shape, generator=generator)
    return state, rows_B, torch.tensor([0, *query_lens]).cumsum(0).int()


def conv(
    query_lens: Sequence[int],
    channels: int = 24,
    taps: int = 4,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> StateCase:
    """x is the first half of a packed product."""
    generator = torch.Generator().manual_seed(seed)
    packed, weight, offset = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in ((sum(query_lens), 2 * channels), (channels, taps), (channels,))
    )
    rows = make_rows(query_lens, generator, taps - 1, channels)
    names = ("causal_conv1d", "causal_conv1d_update")
    return StateCase(names, (packed[:, :channels],), (weight, offset if bias else None), *rows)


def scan(
    query_lens: Sequence[int],
    channels: int = 8,
    values: int = 4,
    dtype: torch.dtype = torch.float32,
    steepness: float = 0.0,
    seed: int = 0,
) -> StateCase:
    """z, B and C are parts of packed products. steepness: added to the steps' bias; at 5 a token forgets
    nearly all that was before it, at -9 nearly nothing."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens = sum(query_lens)
    packed, mixed = randn(tokens, 2 * channels).to(dtype), randn(tokens, 8 + 2 * values).to(dtype)
    u, delta = randn(tokens, channels).to(dtype), randn(tokens, channels).to(dtype)
    b, c = mixed[:, 8 : 8 + values], mixed[:, 8 + values :]
    a_log = torch.rand(channels, values, generator=generator) * 3 - 1
    d, bias = randn(channels).to(dtype), (randn(channels) - 2 + steepness).to(dtype)
    rows = make_rows(query_lens, generator, channels, values)
    names = ("selective_scan", "selective_state_update")
    return StateCase(names, (u, delta, b, c, packed[:, channels:]), (a_log, d, bias), *rows)


def ssd(
    query_lens: Sequence[int],
    heads: int = 4,
    channels: int = 16,
    values: int = 16,
    groups: int = 2,
    dtype: torch.dtype = torch.float32,
    steepness: float = 0.0,
    seed: int = 0,
) -> StateCase:
    """All tokens are parts of one packed product. steepness: as of `scan`."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens, sizes = sum(query_lens), [heads * channels, groups * values, groups * values, heads]
    x, b, c, dt = randn(tokens, sum(sizes)).to(dtype).split(sizes, 1)
    x_THP = x.unflatten(1, (heads, channels))
    b_TGN, c_TGN = (t.unflatten(1, (groups, values)) for t in (b, c))
    a_log = torch.rand(heads, generator=generator) * 3 - 1
    d, bias = randn(heads).to(dtype), (randn(heads) - 2 + steepness).to(dtype)
    rows = make_rows(query_lens, generator, heads, channels, values)
    return StateCase(("ssd_scan", "ssd_state_update"), (x_THP, dt, b_TGN, c_TGN), (a_log, d, bias), *rows)


def delta(
    query_lens: Sequence[int],
    heads: int = 4,
    key_heads: int = 2,
    key_dim: int = 16,
    value_dim: int = 24,
    by_channel: bool = False,
    dtype: torch.dtype = torch.float32,
    steepness: float = 0.0,
    seed: int = 0,
) -> StateCase:
    """All tokens are parts of one packed product. by_channel: a gate for each channel of the key, else one of
    a head. steepness: as of `scan`."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    gates = (heads, key_dim) if by_channel else (heads,)
    shapes = [(key_heads, key_dim)] * 2 + [(heads, value_dim), gates, (heads,)]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    packed = randn(sum(query_lens), sum(sizes)).to(dtype).split(sizes, 1)
    tokens = tuple(x.unflatten(1, shape) for x, shape in zip(packed, shapes, strict=True))
    a_log, bias = torch.rand(heads, generator=generator) * 3 - 1, randn(*gates) - 2 + steepness
    rows = make_rows(query_lens, generator, heads, key_dim, value_dim)
    names = ("chunk_delta_rule", "recurrent_delta_rule")
    return StateCase(names, tokens, (a_log, bias.to(dtype), key_dim**-0.5), *rows)


def check(case: StateCase, impl: str, is_update: bool = False) -> None:
    """Outputs and states of the step's rows are right, and no other row has changed."""
    (y, state), (expected_y, expected_state) = case.run(impl, is_update), case.answer()
    assert (y.shape, y.dtype) == (case.shape, case.dtype)
    assert y.is_contiguous()
    rows = case.rows_B.cpu()
    others = [row for row in range(len(state)) if row not in rows.tolist()]
    assert state.cpu()[others].isnan().all(), "a state of nobody was written"
    is_corrected = case.kernels[0] == "chunk_delta_rule" and not is_update
    tolerance = CORRECTED if is_corrected else TOLERANCE
    assert worst(y, expected_y) <= tolerance[case.dtype]
    # States are float32 whatever the tokens are, and a convolution's are copies; products of chunks have
    # operands of 16 bits.
    has_products = is_corrected or (case.kernels[0] in ("ssd_scan", "chunk_rwkv7") and not is_update)
    limit = tolerance[case.dtype if has_products else torch.float32]
    limit = 0 if case.kernels[0] in ("causal_conv1d", "token_shift") else limit
    assert worst(state.cpu()[rows], expected_state[rows]) <= limit


def worst(actual: Tensor, expected: Tensor) -> float:
    """The largest relative L2 error of an index of the first dimension."""
    if not len(expected):
        return 0.0
    difference = (actual.cpu().double() - expected).flatten(1).norm(dim=1)
    return float((difference / expected.flatten(1).norm(dim=1)).max())
