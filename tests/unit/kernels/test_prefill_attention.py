"""prefill_attention: every implementation here against the formula in float64, over poisoned caches."""

import importlib

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels.plans import plan_scope
from fastkernels.kernels.policy import interpreting
from tests.attention_case import attention_case
from tests.unit.kernels.implementations import REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]
DTYPES = [torch.float32, torch.float16 if interpreting() else torch.bfloat16]

# Where tiles, windows and blocks are the point there are few heads: the interpreter pays for each.
FEW = (2, 1)
CASES = {
    "one-token": {"query_lens": [1], "seq_lens": [1]},
    "one-row": {"query_lens": [37], "seq_lens": [37]},
    "many-rows": {"query_lens": [5, 1, 33, 16], "seq_lens": [5, 1, 33, 16]},
    "chunked": {"query_lens": [5, 1, 33], "seq_lens": [100, 64, 40]},
    "long-tiles": {"query_lens": [150, 70], "seq_lens": [210, 70], "heads": FEW},
    "rows-without-queries": {"query_lens": [0, 7, 0, 3, 0], "seq_lens": [9, 7, 0, 20, 4], "heads": FEW},
    "window": {"query_lens": [40, 3, 90], "seq_lens": [40, 80, 130], "window": 33, "heads": FEW},
    "window-of-one": {"query_lens": [20, 3], "seq_lens": [20, 18], "window": 1, "heads": FEW},
    "window-inside-a-tile": {"query_lens": [150], "seq_lens": [160], "window": 7, "heads": FEW},
    "window-longer-than-rows": {"query_lens": [20, 3], "seq_lens": [20, 18], "window": 64, "heads": FEW},
    "small-blocks": {"query_lens": [9, 33], "seq_lens": [9, 70], "block_size": 4, "window": 20, "heads": FEW},
    "large-blocks": {"query_lens": [9, 40], "seq_lens": [9, 300], "block_size": 128, "heads": FEW},
    "sinks": {"query_lens": [5, 1, 33], "seq_lens": [100, 64, 40], "sinks": True},
    "sinks-window": {"query_lens": [40, 3], "seq_lens": [40, 80], "window": 33, "heads": FEW, "sinks": True},
    "no-groups": {"query_lens": [21, 4], "seq_lens": [21, 40], "heads": (3, 3)},
    "one-kv-head": {"query_lens": [21, 4], "seq_lens": [21, 40], "heads": (5, 1)},
    "odd-head-dim": {"query_lens": [21, 4], "seq_lens": [21, 40], "head_dim": 40},
    "wide-head": {"query_lens": [21, 4], "seq_lens": [21, 40], "head_dim": 128},
    "widest-head": {"query_lens": [21, 4], "seq_lens": [21, 40], "heads": (8, 1), "head_dim": 512},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("impl", ALL)
def test_against_the_formula(name, impl, dtype):
    case = attention_case(dtype=dtype, **CASES[name])
    case.check(kernels.prefill_attention(*case.prefill_args, impl=impl))


@pytest.mark.parametrize("name", CASES)
def test_reference_is_exact_in_float64(name):
    case = attention_case(dtype=torch.float64, **CASES[name])
    case.check(kernels.prefill_attention(*case.prefill_args, impl="reference"))


@pytest.mark.parametrize("limit", [100, 1000, 20_000])
@pytest.mark.parametrize("name", ["many-rows", "chunked", "window", "rows-without-queries"])
def test_reference_in_tiles(name, limit, monkeypatch):
    module = importlib.import_module("fastkernels.kernels.prefill_attention.reference")
    monkeypatch.setattr(module, "MAX_ELEMENTS", limit)
    case = attention_case(dtype=torch.float64, **CASES[name])
    case.check(kernels.prefill_attention(*case.prefill_args, impl="reference"))


def test_reference_never_exceeds_its_memory():
    """8,192 tokens of 32 heads: no batch of tiles has more scores or gathered keys than MAX_ELEMENTS."""
    module = importlib.import_module("fastkernels.kernels.prefill_attention.reference")
    tiles = module.tiles([0, 8192, 8292], [8192, 8192], 32, 0)
    assert sum(tile.num_queries for tile in tiles) == 8292
    assert tiles[-1].seq_len == 8192
    for batch in module.batches(tiles, 32, 128, 0):
        longest, widest = max(t.num_queries for t in batch), max(t.seq_len for t in batch)
        assert len(batch) * 32 * widest * longest <= module.MAX_ELEMENTS
        assert len(batch) == 1 or len(batch) * 32 * widest * 128 <= module.MAX_ELEMENTS


@pytest.mark.parametrize("impl", ALL)
def test_rows_behind_decode_rows_are_slices(impl):
    """Query starts count from their first entry: a mixed step passes slices of its tensors."""
    case = attention_case([1, 1, 20, 7], [9, 30, 25, 7])
    query, k_cache, v_cache, starts, seq_lens, tables, *rest = case.prefill_args
    o = kernels.prefill_attention(
        query[2:], k_cache, v_cache, starts[2:], seq_lens[2:], tables[2:], *rest, impl=impl
    )
    torch.testing.assert_close(o.double(), case.answer_THK[2:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", ALL)
def test_chunks_equal_the_whole(impl):
    """The queries of a row in two steps see what they see in one."""
    whole = attention_case([50], [50])
    query, k_cache, v_cache, _, _, tables, scale, window, _, _ = whole.prefill_args
    parts = []
    for start, end in ((0, 20), (20, 50)):
        starts, length = (
            torch.tensor([0, end - start], dtype=torch.int32),
            torch.tensor([end], dtype=torch.int32),
        )
        args = (query[start:end], k_cache, v_cache, starts, length, tables, scale, window, end - start, end)
        parts.append(kernels.prefill_attention(*args, impl=impl))
    whole.check(torch.cat(parts))


@pytest.mark.parametrize("impl", ALL)
def test_left_out_or_scaled_sinks_are_seen(impl):
    case = attention_case(**CASES["sinks"])
    *args, sinks = case.prefill_args
    for wrong in (None, sinks * case.scale, sinks.roll(1)):
        assert not case.error(kernels.prefill_attention(*args, wrong, impl=impl)) < 1e-3


def test_a_library_without_sinks_declines():
    """Before it looks at a device. tests/gpu asks the others."""
    cudnn = importlib.import_module("fastkernels.kernels.prefill_attention.cudnn")
    case = attention_case([37], [37], sinks=True)
    assert cudnn.unsupported("prefill_attention", *case.prefill_args) == "has no attention sinks"


@pytest.mark.parametrize("impl", ALL)
def test_wrong_masks_are_seen(impl):
    case = attention_case(**CASES["window"])
    *args, window, longest, longest_row = case.prefill_args
    for width in (window - 1, window + 1):
        o = kernels.prefill_attention(*args, width, longest, longest_row, impl=impl)
        assert not case.error(o) < 1e-3


@pytest.mark.parametrize("impl", ALL)
def test_layers_share_a_plan(impl):
    """Other queries and caches under the same lengths, in one scope; then lengths that changed in place."""
    first, second = (attention_case([20, 3], [20, 18], seed=seed, dtype=torch.float32) for seed in (1, 2))
    assert torch.equal(first.seq_lens_B, second.seq_lens_B)
    with plan_scope():
        for case in (first, second, first):
            case.check(kernels.prefill_attention(*case.prefill_args, impl=impl))
        query, k_cache, v_cache, starts, seq_lens, tables, *rest = first.prefill_args
        seq_lens -= 1
        starts[1:] -= 1
        o = kernels.prefill_attention(
            query[:-1], k_cache, v_cache, starts, seq_lens, tables, *rest, impl=impl
        )
        expected = kernels.prefill_attention(
            query[:-1], k_cache, v_cache, starts.clone(), seq_lens.clone(), tables, *rest, impl="reference"
        )
        torch.testing.assert_close(o[:19], expected[:19], rtol=1e-4, atol=1e-5)


def test_meta_device_and_tracing():
    case = attention_case(**CASES["chunked"])
    on_meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in case.prefill_args]
    o = kernels.prefill_attention(*on_meta)
    assert (o.shape, o.dtype, o.device.type) == (case.query_THK.shape, torch.float32, "meta")
    assert o.is_contiguous()

    compiled = torch.compile(
        lambda *args: kernels.prefill_attention(*args) * 2, backend="aot_eager", fullgraph=True
    )
    case.check(compiled(*case.prefill_args) / 2)
