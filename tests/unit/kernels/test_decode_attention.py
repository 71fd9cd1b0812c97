"""decode_attention: every implementation here against the formula in float64, over poisoned caches."""

import importlib

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels.policy import interpreting
from tests.attention_case import attention_case
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
    "no-groups": {"seq_lens": [21, 40], "heads": (3, 3)},
    "one-kv-head": {"seq_lens": [21, 40], "heads": (20, 1)},
    "odd-group": {"seq_lens": [21, 0, 40], "heads": (15, 3)},
    "odd-head-dim": {"seq_lens": [21, 40], "head_dim": 40},
    "wide-head": {"seq_lens": [21, 40], "head_dim": 128},
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


@pytest.mark.parametrize("window", [None, 70])
def test_triton_split_rows(window, monkeypatch):
    """As many splits as on a GPU: rows shorter than a split, rows with empty splits, rows without keys."""
    if not interpreting():
        pytest.skip("runs in test_interpreted.py")
    module = importlib.import_module("fastkernels.kernels.decode_attention.triton")
    monkeypatch.setattr(module, "multiprocessors", lambda device: 64)
    monkeypatch.setattr(module, "LARGEST_TILE", 16)
    case = attention_case([1] * 4, [1, 250, 0, 33], window=window)
    splits, smallest = module.split_shape(4, 2, window + 16 if window else 250, 16, 64)
    assert splits >= 5
    assert smallest == 16
    case.check(kernels.decode_attention(*case.decode_args, impl="triton"))
    # The host knows an upper bound only.
    longer = (*case.decode_args[:-1], 1000)
    case.check(kernels.decode_attention(*longer, impl="triton"))


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
