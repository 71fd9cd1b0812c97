"""store_kv: bits, strides, padding; and reading the cache back."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels.kv_cache.gather import gather, key_rows
from fastkernels.kernels.kv_cache.pages import page_list
from tests.unit.kernels.implementations import REFERENCE, TRITON

ALL = [REFERENCE, TRITON]
BLOCK_SIZE = 4
SHAPES = [(1, 2, 16), (7, 3, 8), (33, 1, 64), (40, 8, 5)]


def problem(shape, dtype=torch.float32, num_blocks=20):
    """Keys and values as slices of a packed product, poisoned caches, distinct slots behind block 0."""
    num_tokens, num_heads, head_dim = shape
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(num_tokens, (2 * num_heads + 1) * head_dim, generator=generator).to(dtype)
    key, value = (
        packed[:, i * num_heads * head_dim : (i + 1) * num_heads * head_dim].view(shape) for i in (0, 1)
    )
    k_cache, v_cache = (
        torch.full((num_blocks, BLOCK_SIZE, num_heads, head_dim), torch.nan, dtype=dtype) for _ in "kv"
    )
    slots = torch.randperm((num_blocks - 1) * BLOCK_SIZE, generator=generator)[:num_tokens] + BLOCK_SIZE
    return key, value, k_cache, v_cache, slots


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_tokens_go_to_their_slots_and_nothing_else_changes(shape, dtype, impl):
    key, value, k_cache, v_cache, slots = problem(shape, dtype)
    kernels.store_kv(key, value, k_cache, v_cache, slots, impl=impl)
    for cache, stored in ((k_cache, key), (v_cache, value)):
        left = torch.ones(cache.shape[0] * BLOCK_SIZE, dtype=torch.bool)
        for token, slot in enumerate(slots.tolist()):
            assert torch.equal(cache[slot // BLOCK_SIZE, slot % BLOCK_SIZE], stored[token])
            left[slot] = False
        assert cache.flatten(0, 1)[left].isnan().all()


@pytest.mark.parametrize("impl", ALL)
def test_padding_stays_in_the_null_block(impl):
    key, value, k_cache, v_cache, slots = problem((7, 2, 16))
    slots[2:5] = torch.tensor([0, 0, 3])
    kernels.store_kv(key, value, k_cache, v_cache, slots, impl=impl)
    written = ~k_cache[1:].isnan().flatten(0, 1).flatten(1).any(1)
    assert written.nonzero().flatten().tolist() == sorted((slots[slots >= BLOCK_SIZE] - BLOCK_SIZE).tolist())


@pytest.mark.parametrize("impl", ALL)
def test_no_tokens(impl):
    key, value, k_cache, v_cache, slots = problem((0, 2, 16))
    kernels.store_kv(key, value, k_cache, v_cache, slots, impl=impl)
    assert k_cache.isnan().all()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_mutation_under_compile(backend):
    """The operator says that it writes: functionalisation keeps the write, and what is read later sees it."""
    key, value, k_cache, v_cache, slots = problem((7, 2, 16))
    expected = [cache.clone() for cache in (k_cache, v_cache)]
    kernels.store_kv(key, value, *expected, slots)

    @torch.compile(backend=backend, fullgraph=True)
    def stored(key, value, k_cache, v_cache, slots):
        before = k_cache.nan_to_num().abs().sum()
        kernels.store_kv(key, value, k_cache, v_cache, slots)
        return before, k_cache.nan_to_num().abs().sum()

    before, after = stored(key, value, k_cache, v_cache, slots)
    assert before == 0
    assert after != 0
    for cache, wanted in zip((k_cache, v_cache), expected, strict=True):
        assert torch.equal(cache.nan_to_num(), wanted.nan_to_num())


def test_meta_device():
    args = [a.to("meta") for a in problem((7, 2, 16))]
    assert kernels.store_kv(*args) is None


def test_what_was_stored_is_gathered():
    """Slots, tables and gathered rows speak of the same places; behind its end a row repeats its last key."""
    tables = torch.tensor([[5, 2, 9], [7, 1, 0]], dtype=torch.int32)
    lens, positions = torch.tensor([11, 5], dtype=torch.int32), torch.arange(11)
    k_cache = torch.full((10, BLOCK_SIZE, 2, 3), torch.nan)
    v_cache, key = k_cache.clone(), torch.randn(16, 2, 3)
    slots = torch.cat(
        [t[positions[:n] // 4].long() * 4 + positions[:n] % 4 for t, n in zip(tables, lens, strict=True)]
    )
    kernels.store_kv(key, -key, k_cache, v_cache, slots)

    rows = key_rows(tables, lens, torch.tensor([2, 0]), 9, BLOCK_SIZE, 2)
    read = gather(k_cache, rows, torch.float64)
    assert torch.equal(read[0].transpose(0, 1), key[2:11].double())
    assert torch.equal(read[1].transpose(0, 1), key[11:][[0, 1, 2, 3, 4, 4, 4, 4, 4]].double())
    assert rows.position_BS.tolist() == [list(range(2, 11)), list(range(9))]


def test_page_list():
    """FlashInfer's form of the tables: only pages in use, the last one's length, nothing of an empty row."""
    tables = torch.tensor([[5, 2, 9], [7, 1, 4], [3, 3, 3], [8, 6, 0]], dtype=torch.int32)
    pages = page_list(torch.tensor([9, 4, 0, 5], dtype=torch.int32), tables, 4)
    assert pages.starts_B1.tolist() == [0, 3, 4, 4, 6]
    assert pages.ids.tolist() == [5, 2, 9, 7, 8, 6]
    assert pages.last_lens_B.tolist() == [1, 4, 0, 1]
    assert {pages.starts_B1.dtype, pages.ids.dtype, pages.last_lens_B.dtype} == {torch.int32}
