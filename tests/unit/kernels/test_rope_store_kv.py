"""rope_store_kv: what rope and then store_kv do, bit for bit, by every implementation on this machine."""

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.rope_store_case import BLOCK_SIZE, copied, expected, make, same
from tests.unit.kernels.implementations import REFERENCE, TRITON

ALL = [REFERENCE, pytest.param("parts", id="parts"), TRITON]
# (T, H, J, K, R): heads as in test_rope.py, with and without a rest that is not rotated; one token of grouped
# heads. A program has one token, so a few of them are as good as many.
SHAPES = [
    (3, 4, 2, 16, 16), (1, 1, 1, 64, 64), (2, 2, 5, 8, 8), (2, 6, 3, 24, 16), (3, 3, 1, 14, 10),
    (2, 20, 4, 128, 128), (1, 8, 2, 16, 16), (3, 4, 2, 16, 8),
]  # fmt: skip


def stored(args: tuple[Tensor, ...], impl: str) -> tuple[Tensor, ...]:
    """The query and both caches after a call on copies of the caches."""
    args = copied(args)
    return kernels.rope_store_kv(*args, impl=impl), *args[5:7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_is_rope_and_then_store_kv(shape, dtype, impl):
    args = make(shape, dtype)
    query, *caches = stored(args, impl)
    assert query.is_contiguous()
    same((query, *caches), expected(args, None if impl == "parts" else impl))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_against_complex_multiplication(dtype, impl):
    """Queries are turned, keys are turned in their slots, values lie in theirs, all else is as it was."""
    args = make((9, 4, 2, 16, 12), dtype)
    positions, q, k, v, table, *_, slots = args
    query, k_cache, v_cache = stored(args, impl)
    cos, sin = table.double()[positions].unsqueeze(1).chunk(2, dim=-1)

    def turned(x: Tensor) -> Tensor:
        first, second = x[..., :12].double().chunk(2, dim=-1)
        z = torch.complex(first, second) * torch.complex(cos, sin)
        return torch.cat((z.real, z.imag, x[..., 12:].double()), dim=-1)

    near = {"rtol": 0, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(query.double(), turned(q), **near)
    torch.testing.assert_close(k_cache.flatten(0, 1)[slots].double(), turned(k), **near)
    assert torch.equal(v_cache.flatten(0, 1)[slots], v)
    for cache in (k_cache, v_cache):
        left = torch.ones(len(cache) * BLOCK_SIZE, dtype=torch.bool)
        left[slots] = False
        assert cache.flatten(0, 1)[left].isnan().all()


@pytest.mark.parametrize("impl", ALL)
def test_padding_stays_in_the_null_block(impl):
    args = make((7, 4, 2, 16, 16), torch.float32)
    slots = args[-1]
    slots[2:5] = torch.tensor([0, 0, 3])
    query, k_cache, v_cache = stored(args, impl)
    wanted = expected(args, None)[0]
    torch.testing.assert_close(query, wanted)
    for cache in (k_cache, v_cache):
        written = ~cache[1:].isnan().flatten(0, 1).flatten(1).any(1)
        places = sorted((slots[slots >= BLOCK_SIZE] - BLOCK_SIZE).tolist())
        assert written.nonzero().flatten().tolist() == places


@pytest.mark.parametrize("impl", [TRITON])
def test_strided_caches_positions_and_slots(impl):
    """Caches whose heads or tokens lie apart, one unlike the other; every second position and slot."""
    args = list(make((9, 4, 2, 16, 8), torch.float32))
    wanted = expected(args, "reference")
    args[0], args[7] = (index.repeat_interleave(2)[::2] for index in (args[0], args[7]))
    blocks, _, heads, dim = args[5].shape
    args[5] = torch.full((blocks, heads, BLOCK_SIZE, dim), torch.nan).transpose(1, 2)
    args[6] = torch.full((blocks, BLOCK_SIZE, heads, dim + 8), torch.nan)[..., :dim]
    query = kernels.rope_store_kv(*args, impl=impl)
    torch.testing.assert_close((query, args[5], args[6]), wanted, equal_nan=True)


@pytest.mark.parametrize("impl", ALL)
@pytest.mark.parametrize("kind", ["int32-positions", "table-of-the-dtype"])
def test_what_rope_takes(impl, kind):
    args = list(make((5, 4, 2, 16, 16), torch.float16))
    if kind == "int32-positions":
        args[0] = args[0].int()
    else:
        args[4] = args[4].half()
    found = stored(tuple(args), impl)
    torch.testing.assert_close(found, expected(tuple(args), "reference"), equal_nan=True)


@pytest.mark.parametrize("impl", ALL)
def test_no_tokens(impl):
    query, *caches = stored(make((0, 4, 2, 16, 16), torch.float32), impl)
    assert query.shape == (0, 4, 16)
    assert all(cache.isnan().all() for cache in caches)


def test_exact_in_float64():
    args = make((9, 4, 2, 16, 16), torch.float64)
    same(stored(args, "reference"), expected(args, "reference"))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_mutation_under_compile(backend):
    args = make((7, 4, 2, 16, 16), torch.float32)
    wanted = expected(args, None)

    @torch.compile(backend=backend, fullgraph=True)
    def called(*args):
        before = args[5].nan_to_num().abs().sum()
        return kernels.rope_store_kv(*args), before, args[5].nan_to_num().abs().sum()

    args = copied(args)
    query, before, after = called(*args)
    assert before == 0
    assert after != 0
    same((query, *args[5:7]), wanted)


def test_meta_device():
    args = [a.to("meta") for a in make((7, 4, 2, 16, 16), torch.float32)]
    query = kernels.rope_store_kv(*args)
    assert query.is_meta
    assert query.shape == (7, 4, 16)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_triton_does_not_serve(impl):
    with pytest.raises(KernelError, match="float64"):
        stored(make((5, 4, 2, 16, 16), torch.float64), impl)
    args = list(make((5, 4, 2, 16, 16), torch.float32))
    args[6] = args[6].half()
    with pytest.raises(KernelError, match="one dtype"):
        stored(tuple(args), impl)
