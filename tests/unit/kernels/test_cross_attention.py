"""cross_attention: every implementation on this machine against the plain formula in float64."""

from __future__ import annotations

import importlib
import re

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import counters
from fastkernels.kernels.cross_attention import paged
from fastkernels.kernels.policy import interpreting
from tests.cross_case import cross_case
from tests.unit.kernels.hopper import compiled
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ROWS = {
    "decode": ([1, 1, 1, 1], 50),
    "one": ([1], 7),
    "prompts": ([4, 4], 33),
    "mixed": ([1, 1, 7, 1, 20], 50),
    "tiles": ([17, 1, 40], 64),
}
each = pytest.mark.parametrize("rows", ROWS.values(), ids=list(ROWS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(rows, impl, dtype):
    case = cross_case(*rows, num_heads=2, dtype=dtype)
    case.check(kernels.cross_attention(*case.args, impl=impl))


@pytest.mark.parametrize("head_dim", [8, 40])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_head_dimensions_that_are_no_power_of_two(impl, head_dim):
    case = cross_case([3, 1], 20, num_heads=2, head_dim=head_dim)
    case.check(kernels.cross_attention(*case.args, impl=impl))


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_the_bound_of_the_queries_may_be_larger(impl):
    """A replayed graph knows only the longest row that it serves."""
    case = cross_case([3, 1, 2], 20)
    *tensors, scale, _ = case.args
    case.check(kernels.cross_attention(*tensors, scale, 16, impl=impl))


# Lengths of queries, and the splits asked for.
SPLIT_ROWS = {
    "one": ([1], (1, 2, 4, 100)),
    "several": ([1] * 3, (2, 4)),
    "short-prompts": ([1, 4, 0, 2], (4, 100)),
    "long-prompts": ([1, 17, 0, 2], (2, 4)),
    "no-queries": ([0, 0, 1], (4, 100)),
}
SPLIT_DTYPES = {1: DTYPES[0], 2: DTYPES[1], 4: DTYPES[0], 100: DTYPES[1]}


@pytest.fixture
def split(monkeypatch):
    """The Triton module as on a GPU of 12 processors, with tiles of 16 keys and counters of its own."""
    if not interpreting():
        pytest.skip("runs in test_interpreted.py")
    module = importlib.import_module("fastkernels.kernels.cross_attention.triton")
    monkeypatch.setattr(module, "multiprocessors", lambda device: 12)
    small = {size: tile._replace(keys=16) for size, tile in module.TILES.items()}
    monkeypatch.setattr(module, "TILES", small)
    monkeypatch.setattr(counters, "_of_stream", {})
    return module


@pytest.mark.parametrize(
    ("name", "splits"), [(name, splits) for name, (_, counts) in SPLIT_ROWS.items() for splits in counts]
)
def test_triton_split_keys(name, splits, split):
    """70 keys are five tiles, the last one of 6: of four splits one would have none, of a hundred most."""
    dtype = SPLIT_DTYPES[splits]
    case = cross_case(SPLIT_ROWS[name][0], 70, num_heads=2, dtype=dtype)
    tile = split.TILES[dtype.itemsize]._replace(splits=splits)
    assert -(-70 // split.keys_of_a_split(70, tile)) == {4: 3, 100: 5}.get(splits, splits)
    first = split.launch(*case.args, tile)
    case.check(first)
    assert torch.equal(split.launch(*case.args, tile), first)
    # Every launch has left its counters as it found them.
    assert len(counters._of_stream) == (splits > 1)
    assert all(not zeros.any() for zeros in counters._of_stream.values())


@pytest.mark.parametrize(("lens", "is_split"), [([1], True), ([4, 1, 0], True), ([1] * 11, False)])
def test_triton_splits_the_keys_of_few_rows(lens, is_split, split):
    case = cross_case(lens, 60, head_dim=40)
    case.check(kernels.cross_attention(*case.args, impl="triton"))
    assert bool(counters._of_stream) == is_split


def test_splits():
    """At most four programs a processor, of 132, with 20 heads; without splits where that many are there."""
    module = importlib.import_module("fastkernels.kernels.cross_attention.triton")
    chosen = {rows: module.tile_of(20 * rows, 2, 132).splits for rows in (1, 2, 4, 6, 8, 13, 14, 32)}
    assert chosen == {1: 26, 2: 13, 4: 6, 6: 4, 8: 3, 13: 2, 14: 1, 32: 1}
    for keys in (1, 15, 16, 150, 1500):
        for splits in range(1, 30):
            size = module.keys_of_a_split(keys, module.Tile(16, 3, 4, splits))
            assert size % 16 == 0
            assert splits * size >= keys  # no more than asked for


@pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing")
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("is_split", [False, True])
def test_code_for_hopper(is_split):
    """At the real model's size: nothing is read before the kernel ahead has ended, keys and values go to
    shared memory, nothing lies in local memory, partial results are read behind the count."""
    module = importlib.import_module("fastkernels.kernels.cross_attention.triton")
    types = {
        **dict.fromkeys(("query", "key", "value", "out"), "*fp16"), "scale": "fp32", "rows": "*i64",
        **dict.fromkeys(("split_out", "split_lse"), "*fp32"),
        **dict.fromkeys(("counters", "query_starts"), "*i32"),
    }  # fmt: skip
    tile = module.TILES[2]
    constants = {"H": 20, "K": 64, "M": module.QUERIES, "SHORT": True, "TILE": tile.keys, "DIMS": 64,
                 "SLOTS": module.SLOTS, "STAGES": tile.stages, "OVERLAPS": True}  # fmt: skip
    if not is_split:
        constants |= dict.fromkeys(("split_out", "split_lse", "counters"))
    options = {"num_warps": tile.warps, "launch_pdl": True}
    code = compiled(module._attend, types, constants, options).asm["ptx"]
    assert ".local" not in code
    assert "mma.sync" in code
    assert "cp.async.cg.shared.global" in code
    before, wait, _ = code.partition("griddepcontrol.wait")
    assert wait
    assert "ld.global" not in before
    atomics = re.findall(r"atom[\w.:]*", code)
    if not is_split:
        assert not atomics
        return
    assert atomics == ["atom.global.gpu.acq_rel.add.u32"]
    before, _, after = code.partition(atomics[0])
    assert before.rindex("bar.sync") > before.rindex("st.global")
    assert "ld.global.cg" not in before
    assert after.index("bar.sync") < after.index("ld.global.cg")
    assert set(re.findall(r"ld\.global[\w.:]*", after)) == {"ld.global.cg.b32", "ld.global.cg.v4.b32"}


@pytest.mark.parametrize("keys", [50, 52, 64, 1500])
def test_pools_as_paged_caches(keys):
    """The function, without its device: blocks of a row follow one another."""
    case = cross_case([1, 1, 1], keys)
    if keys == 50:
        assert "blocks of 4 or more, not 50" in (paged.unsupported("cross_attention", *case.args) or "")
        return
    assert paged.unsupported("cross_attention", *case.args) is None
    case.check(paged.cross_attention(*case.args))
    assert paged.block_size(keys) == {52: 4, 64: 16, 1500: 4}[keys]
    assert "one query" in (paged.unsupported("", *cross_case([1, 2], keys).args) or "")


def test_paged_needs_a_gpu():
    with pytest.raises(KernelError, match="needs cuda"):
        kernels.cross_attention(*cross_case([1], 16).args, impl="paged")
