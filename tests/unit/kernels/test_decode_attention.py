"""decode_attention: every implementation here against the formula in float64, over poisoned caches."""

import importlib
import re

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import counters
from fastkernels.kernels.policy import interpreting
from tests.attention_case import attention_case
from tests.unit.kernels.hopper import compiled
from tests.unit.kernels.implementations import REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]
# Triton's interpreter multiplies bfloat16 as integers; tests/gpu covers it.
DTYPES = [torch.float32, torch.float16 if interpreting() else torch.bfloat16]

CASES = {
    "one-row": {"seq_lens": [37]},
    "one-key": {"seq_lens": [1, 1, 1]},
    "mixed": {"seq_lens": [1, 15, 16, 17, 300]},
    "padding-rows": {"seq_lens": [5, 0, 64, 0]},
    "padding-only": {"seq_lens": [0, 0]},
    "window": {"seq_lens": [3, 40, 90, 200], "window": 33},
    "window-of-one": {"seq_lens": [1, 17, 40], "window": 1},
    "window-longer-than-rows": {"seq_lens": [3, 40], "window": 64},
    "small-blocks": {"seq_lens": [9, 33, 70], "block_size": 4, "window": 20},
    "large-blocks": {"seq_lens": [9, 300], "block_size": 128},
    "sinks": {"seq_lens": [1, 0, 40, 300], "heads": (6, 2), "sinks": True},
    "sinks-window": {"seq_lens": [3, 40, 200], "window": 33, "sinks": True},
    "no-groups": {"seq_lens": [21, 40], "heads": (3, 3)},
    "one-kv-head": {"seq_lens": [21, 40], "heads": (20, 1)},
    "odd-group": {"seq_lens": [21, 0, 40], "heads": (15, 3)},
    "odd-head-dim": {"seq_lens": [21, 40], "head_dim": 40},
    "wide-head": {"seq_lens": [21, 40], "head_dim": 128},
    "widest-head": {"seq_lens": [21, 40], "heads": (8, 1), "head_dim": 512},
}


def case_of(name: str, dtype: torch.dtype, **changes):
    facts = {**CASES[name], **changes}
    return attention_case([1] * len(facts["seq_lens"]), dtype=dtype, **facts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("impl", ALL)
def test_against_the_formula(name, impl, dtype):
    case = case_of(name, dtype)
    case.check(kernels.decode_attention(*case.decode_args, impl=impl))


@pytest.mark.parametrize("name", CASES)
def test_reference_is_exact_in_float64(name):
    case = case_of(name, torch.float64)
    case.check(kernels.decode_attention(*case.decode_args, impl="reference"))


@pytest.fixture
def many_splits(monkeypatch):
    """The Triton module as on a GPU with 64 multiprocessors, and tiles of 16 keys."""
    if not interpreting():
        pytest.skip("runs in test_interpreted.py")
    module = importlib.import_module("fastkernels.kernels.decode_attention.triton")
    monkeypatch.setattr(module, "multiprocessors", lambda device: 64)
    monkeypatch.setattr(module, "LARGEST_TILE", 16)
    monkeypatch.setattr(counters, "_of_stream", {})
    return module


def untouched_or_zero() -> bool:
    """Every launch has left its counters as it found them."""
    return all(not zeros.any() for zeros in counters._of_stream.values())


@pytest.mark.parametrize("window", [None, 50])
def test_triton_split_rows(window, many_splits):
    """As many splits as on a GPU: rows shorter than a split, rows with empty splits, rows without keys."""
    case = attention_case([1] * 4, [1, 70, 0, 33], window=window)
    splits, smallest = many_splits.split_shape(4, 2, window + 16 if window else 70, 16, 64)
    assert splits >= 5
    assert smallest == 16
    case.check(kernels.decode_attention(*case.decode_args, impl="triton"))
    # The host knows an upper bound only.
    longer = (*case.decode_args[:-1], 200)
    case.check(kernels.decode_attention(*longer, impl="triton"))
    assert untouched_or_zero()


@pytest.mark.parametrize(
    ("heads", "window", "slots", "sinks"),
    [
        ((4, 2), None, 1, False),
        ((6, 2), 50, 1, True),
        ((4, 2), 50, 64, False),
        ((6, 2), None, 64, True),
    ],
)
def test_triton_combines_in_the_launch(heads, window, slots, sinks, many_splits, monkeypatch):
    """Rows with 1, 2, many and no splits in use in one call; then other lengths, in fewer splits of several
    tiles, with the same counters. A sink counts once, however many splits there are."""
    group = 2 if heads == (4, 2) else 4  # a power of two
    monkeypatch.setattr(many_splits, "COMBINED", slots * group * 16)
    calls = [([9, 17, 70, 0], 64), ([85, 0, 16, 33], 10), ([0] * 4, 64)]
    for seed, (lengths, processors) in enumerate(calls):
        monkeypatch.setattr(many_splits, "multiprocessors", lambda device, count=processors: count)
        case = attention_case([1] * 4, lengths, heads=heads, window=window, seed=seed, sinks=sinks)
        args = list(case.decode_args)
        args[7] = 100
        case.check(kernels.decode_attention(*args, impl="triton"))
        assert list(counters._of_stream) == [(case.query_THK.device, 0)]
        assert untouched_or_zero()


def test_triton_writes_short_rows_directly(many_splits, monkeypatch):
    """Where one split is in use neither counter nor partial result is touched: garbage there harms nobody."""
    garbage = torch.full((32,), 7, dtype=torch.int32)
    monkeypatch.setattr(many_splits, "zeroed", lambda count, device: garbage)
    case = attention_case([1] * 4, [9, 16, 0, 1])
    *args, _ = case.decode_args
    case.check(kernels.decode_attention(*args, 50, impl="triton"))
    assert (garbage == 7).all()


def test_split_shape():
    """The grid by upper bounds, on 132 multiprocessors, with 8 key/value heads and tiles of 64 keys."""
    shape = importlib.import_module("fastkernels.kernels.decode_attention.triton").split_shape
    assert shape(1, 8, 2048, 64, 132) == (32, 64)
    assert shape(8, 8, 8192, 64, 132) == (8, 64)
    assert shape(32, 8, 2048, 64, 132) == (4, 512)
    assert shape(32, 8, 512, 64, 132) == (1, 512)
    assert [shape(rows, 8, 2048, 64, 132)[0] for rows in (64, 128, 512)] == [1, 1, 1]
    assert shape(512, 8, 131072, 64, 132) == (64, 512)
    for rows in (1, 2, 4, 8, 16, 24, 32, 66, 128, 512, 4096):
        for keys in (1, 64, 500, 2048, 8192):
            splits, smallest = shape(rows, 8, keys, 64, 132)
            assert 1 <= splits <= max(1, -(-keys // smallest))
            assert rows * 8 * splits <= max(16 * 132, 8 * rows * -(-keys // 2048))


@pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing")
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("splits", "has_sinks"), [(1, True), (4, False), (64, True)])
def test_code_for_hopper(splits, has_sinks):
    """Nothing in local memory; the count is one thread's, released and acquired, between two barriers."""
    module = importlib.import_module("fastkernels.kernels.decode_attention.triton")
    types = {
        **dict.fromkeys(("query", "k_cache", "v_cache", "out"), "*bf16"), "scale": "fp32",
        **dict.fromkeys(("split_out", "split_lse"), "*fp32"),
        **dict.fromkeys(("counters", "seq_lens", "block_tables"), "*i32"),
    }  # fmt: skip
    constants = {"G": 4, "K": 128, "P": 16, "WINDOW": 0, "MIN_SPLIT": 64, "TILE": 64, "HEADS": 16, "GROUP": 4,
                 "DIMS": 128, "SLOTS": min(splits, 16), "STAGES": module.STAGES}  # fmt: skip
    if has_sinks:
        types["sinks"] = "*bf16"
    else:
        constants["sinks"] = None
    if splits == 1:
        constants |= dict.fromkeys(("split_out", "split_lse", "counters"))
    made = compiled(module._attend, types, constants, {"num_warps": module.WARPS})
    code = made.asm["ptx"]
    assert ".local" not in code
    assert module.RESIDENT * (made.metadata.shared + 1024) <= 228 * 1024
    atomics = re.findall(r"atom[\w.:]*", code)
    if splits == 1:
        assert not atomics
        return
    assert atomics == ["atom.global.gpu.acq_rel.add.u32"]
    before, _, after = code.partition(atomics[0])
    assert before.rindex("bar.sync") > before.rindex("st.global")
    assert "ld.global.cg" not in before
    assert after.index("bar.sync") < after.index("ld.global.cg")
    assert set(re.findall(r"ld\.global[\w.:]*", after)) == {"ld.global.cg.b32", "ld.global.cg.v4.b32"}


@pytest.mark.parametrize("impl", ALL)
def test_max_seq_len_is_an_upper_bound(impl):
    case = case_of("mixed", torch.float32)
    *args, longest = case.decode_args
    case.check(kernels.decode_attention(*args, longest + 11, impl=impl))


def test_reference_in_chunks(monkeypatch):
    module = importlib.import_module("fastkernels.kernels.decode_attention.reference")
    monkeypatch.setattr(module, "MAX_GATHERED", 2 * 2 * 300 * 16)  # two rows at a time
    case = case_of("mixed", torch.float64)
    case.check(kernels.decode_attention(*case.decode_args, impl="reference"))


@pytest.mark.parametrize("impl", ALL)
def test_left_out_or_scaled_sinks_are_seen(impl):
    case = case_of("sinks", torch.float32)
    *args, sinks = case.decode_args
    for wrong in (None, sinks * args[5], sinks.roll(1)):
        assert not case.error(kernels.decode_attention(*args, wrong, impl=impl)) < 1e-3


@pytest.mark.parametrize("impl", ALL)
def test_wrong_lengths_are_seen(impl):
    """The check has teeth: one key more or less, or another window, is no rounding error."""
    case = case_of("window", torch.float32)
    query, k_cache, v_cache, seq_lens, tables, scale, window, longest = case.decode_args
    for lengths, width in ((seq_lens - 1, window), (seq_lens, window - 1), (seq_lens, window + 1)):
        o = kernels.decode_attention(
            query, k_cache, v_cache, lengths, tables, scale, width, longest, impl=impl
        )
        assert not case.error(o) < 1e-3


def test_meta_device_and_tracing():
    case = case_of("mixed", torch.float32)
    on_meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in case.decode_args]
    o = kernels.decode_attention(*on_meta)
    assert (o.shape, o.dtype, o.device.type) == (case.query_THK.shape, torch.float32, "meta")
    assert o.is_contiguous()

    compiled = torch.compile(
        lambda *args: kernels.decode_attention(*args) * 2, backend="aot_eager", fullgraph=True
    )
    case.check(compiled(*case.decode_args) / 2)
