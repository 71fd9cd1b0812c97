"""norm_rope_store_kv: what the norms and then rope_store_kv do, by every implementation on this machine."""

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.pointwise_cases import randn
from tests.rope_store_case import make as rope_store_case
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TRITON

ALL = [REFERENCE, pytest.param("parts", id="parts"), TRITON]
EPS = 1e-6
# (T, H, J, K): even heads of any size, groups of one, two and eight.
SHAPES = [(3, 4, 2, 16), (1, 8, 1, 64), (2, 6, 3, 24), (3, 1, 1, 10), (2, 16, 2, 512), (2, 16, 8, 256)]


def arguments(shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple:
    positions, q, k, v, *cache = rope_store_case((*shape, shape[-1]), dtype)
    weights = (randn(shape[-1], dtype=dtype, seed=seed) + 1 for seed in (1, 2))
    return positions, 3 * q, k, v, *weights, EPS, *cache


def called(args: tuple, impl: str | None) -> tuple[Tensor, ...]:
    """The query and both caches after a call on copies of the caches."""
    *rest, k_cache, v_cache, slots = args
    caches = k_cache.clone(), v_cache.clone()
    return kernels.norm_rope_store_kv(*rest, *caches, slots, impl=impl), *caches


def one_by_one(args: tuple, impl: str) -> tuple[Tensor, ...]:
    """The same by kernels apart: plain PyTorch, for `parts` those that a CPU takes."""
    positions, q, k, v, q_weight, k_weight, eps, table, k_cache, v_cache, slots = args
    name = None if impl == "parts" else "reference"
    heads = kernels.rms_norm(q, q_weight, eps, impl=name), kernels.rms_norm(k, k_weight, eps, impl=name)
    values, caches = kernels.rms_norm(v, None, eps, impl=name), (k_cache.clone(), v_cache.clone())
    return kernels.rope_store_kv(positions, *heads, values, table, *caches, slots, impl=name), *caches


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_is_norms_and_then_rope_store_kv(shape, dtype, impl):
    """Bit for bit but where the squares of a head were added in another order."""
    args = arguments(shape, dtype)
    eps = torch.finfo(dtype).eps
    for a, b in zip(called(args, impl), one_by_one(args, impl), strict=True):
        torch.testing.assert_close(a, b, rtol=2 * eps, atol=8 * eps, equal_nan=True)
        if dtype != torch.float32:
            assert (a != b)[b == b].float().mean() < 0.02


@pytest.mark.parametrize("impl", ALL)
def test_values_that_are_the_keys(impl):
    args = list(arguments((3, 4, 2, 16), torch.float32))
    args[3] = args[2]
    found, wanted = called(tuple(args), impl), one_by_one(tuple(args), impl)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert not torch.equal(found[1].nan_to_num(), found[2].nan_to_num()), "values are not rotated"


@pytest.mark.parametrize("impl", ALL)
def test_no_tokens(impl):
    query, *caches = called(arguments((0, 4, 2, 16), torch.float32), impl)
    assert query.shape == (0, 4, 16)
    assert all(cache.isnan().all() for cache in caches)


@pytest.mark.parametrize("impl", [TRITON])
def test_a_table_for_part_of_a_head_is_declined(impl):
    args = list(arguments((3, 4, 2, 16), torch.float32))
    args[7] = args[7][:, :8].contiguous()
    with pytest.raises(KernelError, match="rotates whole heads of 16 features, not 8 of them"):
        kernels.norm_rope_store_kv(*args, impl=impl)
    assert kernels.registered["norm_rope_store_kv"].choose(args) == "parts"
