"""Paged attention over mixed batches against attention on plain tensors; stores, copies, tracing."""

from __future__ import annotations

import pytest
import torch
from fastkernels.baseline.L2 import paged_attention as module
from fastkernels.baseline.L2.causal_attention import CausalAttention
from fastkernels.baseline.L2.paged_attention import PagedAttention
from fastkernels.baseline.L3.decoder_layer import DecoderLayer
from torch import Tensor, nn

from fastkernels.nn.cache import Paged, allocate
from fastkernels.nn.context import Step, use_step
from fastkernels.nn.random_weights import random_weights
from tests.helpers import make_positions, make_step

H, J, K = 4, 2, 8
BLOCK_SIZE, NUM_BLOCKS = 4, 40
BATCHES = {
    "prefill": ([5, 9, 1], [5, 9, 1]),
    "chunk": ([5, 3], [9, 12]),
    "decode": ([1, 1, 1], [2, 17, 8]),
    "mixed": ([1, 1, 6, 4], [9, 2, 6, 11]),
}


def case(name: str, window: int | None) -> tuple[PagedAttention, Step, list[Tensor], list[Tensor]]:
    """A module, a step, packed q, k, v (views of one tensor) and, by row, all keys and values so far."""
    generator = torch.Generator().manual_seed(0)
    query_lens, seq_lens = BATCHES[name]
    attention = PagedAttention(H, K, K**-0.5, J, window)
    pools = allocate(attention, NUM_BLOCKS, BLOCK_SIZE, torch.float32, "cpu")
    for pool in pools.values():
        pool.fill_(torch.nan)
    made = make_step(query_lens, seq_lens, BLOCK_SIZE, NUM_BLOCKS, generator)
    qkv = torch.randn(sum(query_lens), (H + 2 * J) * K, generator=generator)
    q, k, v = qkv.split([H * K, J * K, J * K], dim=-1)
    rows, start = [], 0
    for row, (query, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        kv_LXJK = torch.randn(length, 2, J, K, generator=generator)
        kv_LXJK[length - query :, 0] = k[start : start + query].view(query, J, K)
        kv_LXJK[length - query :, 1] = v[start : start + query].view(query, J, K)
        for position in range(length - query):
            block = made.block_tables_GBN[0][row, position // BLOCK_SIZE]
            attention.k_cache[block, position % BLOCK_SIZE] = kv_LXJK[position, 0]
            attention.v_cache[block, position % BLOCK_SIZE] = kv_LXJK[position, 1]
        rows.append(kv_LXJK)
        start += query
    return attention, made, [q, k, v], rows


def expected(q: Tensor, made: Step, rows: list[Tensor], window: int | None) -> Tensor:
    """Each query by itself, in float64."""
    out, start = [], 0
    for row, kv_LXJK in enumerate(rows):
        query = int(made.query_starts_B1[row + 1] - made.query_starts_B1[row])
        for i in range(query):
            position = len(kv_LXJK) - query + i
            first = 0 if window is None else max(0, position - window + 1)
            k_LHK, v_LHK = kv_LXJK[first : position + 1].double().repeat_interleave(H // J, dim=2).unbind(1)
            scores_LH = (k_LHK * q[start + i].view(H, K).double()).sum(-1) * K**-0.5
            out.append((scores_LH.softmax(0)[..., None] * v_LHK).sum(0).flatten())
        start += query
    return torch.stack(out)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", BATCHES)
def test_against_attention_on_plain_tensors(name: str, window: int | None):
    attention, made, qkv, rows = case(name, window)
    with use_step(made):
        actual = attention(*qkv)
    torch.testing.assert_close(actual.double(), expected(qkv[0], made, rows, window), rtol=0, atol=1e-5)


def test_stores_only_the_slots_of_the_step():
    attention, made, qkv, _ = case("mixed", None)
    before = attention.v_cache.clone()
    with use_step(made):
        attention(*qkv)
    changed = (attention.v_cache != before) & ~(attention.v_cache.isnan() & before.isnan())
    changed_slots = changed.flatten(0, 1).any(-1).any(-1).nonzero().flatten()
    assert changed_slots.tolist() == sorted(made.slots_GT[0].tolist())


@pytest.mark.parametrize("name", ["prefill", "chunk", "decode"])
def test_one_kind_of_rows_is_not_copied(name: str, monkeypatch: pytest.MonkeyPatch):
    attention, made, (q, k, v), _ = case(name, None)
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, query: Tensor, *_: object) -> Tensor:
            seen.append(query)
            return query.clone()

    spy = Spy()
    attention.decode = attention.prefill = spy
    monkeypatch.setattr(module.torch, "cat", None)
    with use_step(made):
        attention(q, k, v)
    assert len(seen) == 1
    assert seen[0].data_ptr() == q.data_ptr()
    assert seen[0].shape == (len(q), H, K)


def test_groups_choose_tables_and_slots():
    attention, made, qkv, rows = case("mixed", None)
    wrong = torch.zeros_like(made.block_tables_GBN[0])
    made.block_tables_GBN.insert(0, wrong)
    made.slots_GT.insert(0, torch.zeros_like(made.slots_GT[0]))
    attention.group = 1
    with use_step(made):
        actual = attention(*qkv)
    torch.testing.assert_close(actual.double(), expected(qkv[0], made, rows, None), rtol=0, atol=1e-5)


def test_declares_its_cache():
    assert PagedAttention(H, K, 1.0, J).cache == Paged((J, K), None)
    assert PagedAttention(H, K, 1.0, J, per_layer_sliding_window=7).cache == Paged((J, K), 7)


ROPE = {"rope_type": "default", "rope_theta": 1e4}


def test_attention_options_add_parameters():
    plain = CausalAttention(32, H, J, K, 64, ROPE)
    full = CausalAttention(32, H, J, K, 64, ROPE, qkv_bias=True, qk_norm_eps=1e-6, sliding_window=5)
    extra = set(full.state_dict()) - set(plain.state_dict())
    assert extra == {"qkv_proj.linear.bias", "q_norm.weight", "k_norm.weight"}
    assert full.attn.cache.window == 5
    assert full.q_norm.weight.shape == (K,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("qk_norm_eps", [None, 1e-6])
def test_a_layer_traces_as_one_graph(name: str, qk_norm_eps: float | None):
    query_lens, seq_lens = BATCHES[name]
    layer = DecoderLayer(32, 48, H, J, K, 64, ROPE, qkv_bias=True, qk_norm_eps=qk_norm_eps, sliding_window=6)
    random_weights(layer, seed=0)
    pools = allocate(layer, NUM_BLOCKS, BLOCK_SIZE, torch.float32, "cpu")
    made = make_step(query_lens, seq_lens, BLOCK_SIZE, NUM_BLOCKS, torch.Generator().manual_seed(0))
    positions = make_positions(query_lens, seq_lens)
    hidden = torch.randn(len(positions), 32, generator=torch.Generator().manual_seed(1))
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    results = []
    for function in (layer, compiled):
        for pool in pools.values():
            pool.zero_()
        with torch.inference_mode(), use_step(made):
            results.append([*function(positions, hidden, hidden), *(pool.clone() for pool in pools.values())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
