"""dense_attention: every implementation on this machine against the plain formula in float64."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.dense_attention import reference
from fastkernels.kernels.plans import plan_scope
from tests.encoder_cases import dense_case
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ROWS = {
    "one": ([7], [7]),
    "equal": ([16, 16, 16], [16, 16, 16]),
    "ragged": ([5, 70, 1, 33], [5, 70, 1, 33]),
    "single-tokens": ([1, 1, 1], [1, 1, 1]),
    "pooled": ([1, 1, 1, 1], [5, 70, 1, 33]),
    "pooled-equal": ([1, 1], [36, 36]),
    "cross": ([3, 20, 2], [40, 1, 17]),
    "cross-equal": ([20, 20], [7, 7]),
    "some-without-queries": ([0, 4, 0, 3], [2, 4, 5, 1]),
    "tiles": ([129, 64, 1], [129, 64, 1]),
}
each = pytest.mark.parametrize("rows", ROWS.values(), ids=list(ROWS))
SELF_ROWS = [name for name, (queries, keys) in ROWS.items() if queries == keys]
# What a decoder's causal mask, a bias by distance, and both at once ask for.
KINDS = {
    "causal": {"causal": True},
    "biased": {"biased": True},
    "causal-biased": {"causal": True, "biased": True},
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_against_the_formula(rows, impl, dtype):
    case = dense_case(*rows, num_heads=2, dtype=dtype)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("head_dim", [8, 40, 72])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_head_dimensions_that_are_no_power_of_two(impl, head_dim):
    case = dense_case([9, 4], [9, 4], num_heads=2, head_dim=head_dim)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("name", ["equal", "cross", "some-without-queries"])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_heads_that_share_keys(impl, name, kv_heads):
    case = dense_case(*ROWS[name], num_heads=6, num_kv_heads=kv_heads)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SELF_ROWS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_causal_and_biased_rows(impl, kind, name, dtype):
    case = dense_case(*ROWS[name], num_heads=2, dtype=dtype, **KINDS[kind])
    if impl == "torch" and len(KINDS[kind]) == 2:
        with pytest.raises(KernelError, match="not both"):
            kernels.dense_attention(*case.args, impl=impl)
        return
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("name", ["cross", "pooled", "pooled-equal", "some-without-queries"])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_a_bias_of_queries_and_other_keys(impl, name):
    case = dense_case(*ROWS[name], biased=True)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("kind", KINDS)
def test_reference_of_causal_and_biased_rows_is_exact_in_float64(kind):
    case = dense_case([5, 70, 1], [5, 70, 1], dtype=torch.float64, **KINDS[kind])
    case.check(kernels.dense_attention(*case.args, impl="reference"))


@pytest.mark.parametrize("impl", ["cudnn", "flash_attn", "aten_flash"])
def test_libraries_refuse_a_bias(impl):
    unsupported = pytest.importorskip(f"fastkernels.kernels.dense_attention.{impl}").unsupported
    case = dense_case([7], [7], dtype=torch.bfloat16, biased=True)
    assert unsupported("dense_attention", *case.args) == "serves no bias"


@each
def test_reference_is_exact_in_float64(rows):
    case = dense_case(*rows, dtype=torch.float64)
    case.check(kernels.dense_attention(*case.args, impl="reference"))


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
def test_bounds_of_the_lengths_may_be_larger(impl):
    """A replayed graph knows only the longest row that it serves."""
    for kind in ({"causal": True}, {"biased": True}):
        case = dense_case([5, 9], [5, 9], **kind)
        case.check(kernels.dense_attention(*case.args[:6], 64, 64, *case.args[8:], impl=impl))


def test_lengths_are_read_once_in_a_scope():
    case = dense_case([5, 9], [5, 9])
    with plan_scope():
        case.check(kernels.dense_attention(*case.args, impl="reference"))
        case.query_starts_B1.set_(torch.tensor([0, 9, 14], dtype=torch.int32))  # other storage: a new plan
        assert case.error(kernels.dense_attention(*case.args, impl="reference")) > 0.1


def test_reference_in_tiles_of_queries(monkeypatch):
    monkeypatch.setattr(reference, "MAX_ELEMENTS", 3 * 70 * 4)
    for kind in ({}, *KINDS.values()):
        case = dense_case([70, 5], [70, 5], **kind)
        case.check(kernels.dense_attention(*case.args, impl="reference"))
