"""judge/rules.py: exact outputs, repeated calls, results that must not change later, null blocks, ranks."""

import math

import pytest
import torch

from fastkernels.judge import compare, rules
from fastkernels.judge.distance import Errors


def test_exact_accepts_equal_and_names_the_number_of_differences():
    ids = torch.tensor([4, 5, 6])
    assert rules.exact({"ids": ids}, {"ids": ids.clone()}).passed
    found = rules.exact({"ids": torch.tensor([4, 0, 0])}, {"ids": ids})
    assert found.verdict.label == "WRONG(value)"
    assert "2 of 3" in found.verdict.failure.message


def test_exact_floats_are_compared_in_the_output_dtype():
    stored = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert rules.exact({"k": stored}, {"k": stored.double()}).passed
    assert not rules.exact({"k": stored + 1}, {"k": stored.double()}).passed
    poisoned = stored.clone()
    poisoned[0, 0] = math.nan
    assert not rules.exact({"k": poisoned}, {"k": stored.double()}).passed
    assert rules.exact({"k": poisoned}, {"k": poisoned.double()}).passed


@pytest.mark.parametrize(("scatter", "passes"), [(0.001, True), (0.1, False)])
def test_repeated_calls_agree_within_what_right_results_can_differ(scatter, passes):
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(20, 32, generator=generator)
    one, two = (truth * (1 + scatter * torch.randn(20, 32, generator=generator)) for _ in range(2))
    verdict = rules.repeatable({"y": one}, {"y": two}, {"y": Errors(0.004, 0.005)})
    assert (verdict is None) == passes
    if verdict:
        assert verdict.label == "WRONG(unstable_result)"


def test_repeated_integers_and_finiteness_must_be_equal():
    ids = torch.tensor([1, 2])
    assert rules.repeatable({"i": ids}, {"i": ids.clone()}, {}) is None
    assert rules.repeatable({"i": ids}, {"i": ids + 1}, {}).label == "WRONG(unstable_result)"
    y = torch.ones(3, 3)
    nan = y.clone()
    nan[0, 0] = math.nan
    assert rules.repeatable({"y": y}, {"y": nan}, {"y": Errors(0.5, 0.5)}).label == "WRONG(unstable_result)"
    infinite = torch.full((3, 3), math.inf)
    assert rules.repeatable({"y": infinite}, {"y": -infinite}, {"y": Errors(0.5, 0.5)})


def test_a_reused_buffer_is_seen():
    buffer = torch.ones(4)
    copied = {"y": buffer.clone()}
    assert rules.untouched(copied, {"y": buffer}) is None
    buffer.fill_(2)  # the next call writes into the same result
    assert rules.untouched(copied, {"y": buffer}).label == "WRONG(unstable_result)"
    nan = torch.full((4,), math.nan)
    assert rules.untouched({"y": nan}, {"y": nan.clone()}) is None


def test_the_null_block_is_nobodys():
    cache = torch.randn(4, 16, 2, 8)
    padded = cache.clone()
    padded[0] = math.nan
    kept = rules.without_null_block({"arg.key_cache": padded, "out.0": cache[0]}, ["arg.key_cache"])
    truth = rules.without_null_block({"arg.key_cache": cache, "out.0": cache[0]}, ["arg.key_cache"])
    assert compare.Standard(truth, {n: t.double() for n, t in truth.items()}).compare(kept).passed
    assert kept["out.0"].shape == cache[0].shape


def test_what_a_token_stores_is_a_row_of_its_own():
    """Beside 15 entries of garbage, keys with one bit of mantissa would be as good as the rest of a block."""
    pool = 8 * torch.randn(4, 16, 2, 64, generator=torch.Generator().manual_seed(0))
    pool[2, 5] /= 8
    pool = pool.bfloat16()
    rough = pool.clone()
    rough[2, 5] = pool[2, 5].to(torch.float8_e5m2).bfloat16()
    truth, right, wrong = ({"cache.0.0.k_cache": side} for side in (pool.double(), pool, rough))
    assert compare.Standard(right, truth).compare(wrong).passed
    wrong, right, truth = (rules.by_token(side, ["cache.0.0.k_cache"]) for side in (wrong, right, truth))
    assert wrong["cache.0.0.k_cache"].shape == (64, 2, 64)
    assert compare.Standard(right, truth).compare(wrong).verdict.label == "WRONG(value)"


def test_ranks_return_the_same_bits():
    y = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).expand(3, 3, 4).clone()
    assert rules.replicated({"y": y}) is None
    y[2, 1, 3] = y[2, 1, 3].nextafter(torch.tensor(math.inf))
    verdict = rules.replicated({"x": torch.ones(3, 2), "y": y})
    assert verdict.label == "WRONG(rank_divergent)"
    assert verdict.failure.message == "y: rank 2 has other bits than rank 0"


def test_ranks_may_return_the_same_nan_and_not_another_zero():
    y = torch.tensor([[math.nan, 0.0], [math.nan, 0.0]])
    assert rules.replicated({"y": y}) is None
    y[1, 1] = -0.0
    assert rules.replicated({"y": y}).label == "WRONG(rank_divergent)"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_ranks_return_one_number_each(dtype):
    assert rules.replicated({"y": torch.tensor([1, 1, 1]).to(dtype)}) is None
    assert rules.replicated({"y": torch.tensor([1, 1, 0]).to(dtype)})


def test_bits_of_ranks_are_compared_whatever_their_strides():
    y = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(0)).expand(2, 5, 3).clone()
    strided = y.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided[0].is_contiguous()
    assert rules.replicated({"y": strided}) is None
    strided[1, 4, 0] += 1
    assert rules.replicated({"y": strided})
