"""chunk_rwkv7, recurrent_rwkv7 and token_shift: every implementation on this machine against one token at a
time in float64."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from tests.mamba_cases import check, worst
from tests.rwkv7_cases import LEAST, heads, layer, shift, wide
from tests.unit.kernels.implementations import DTYPES, GEMV, REFERENCE, TORCH, TRITON

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
EVERY = [REFERENCE, TRITON]
CHUNKED = [REFERENCE, TORCH, TRITON]
# Around chunks of 16 and 64 tokens: one token, exactly one chunk, one more, several rows, one with none.
LENGTHS = [(1,), (64,), (65, 1, 15), (0, 40, 0, 17), ()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", LENGTHS, ids=str)
@pytest.mark.parametrize("impl", CHUNKED)
def test_chunks_against_the_recurrence(impl, lens, dtype):
    check(heads(lens, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("impl", EVERY)
def test_steps_against_the_recurrence(impl, rows, dtype):
    check(heads((1,) * rows, dtype=dtype), impl, is_update=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1,), (8,), (9, 1, 30), (0, 17, 0, 2), ()], ids=str)
@pytest.mark.parametrize("impl", EVERY)
def test_shifts_of_chunks(impl, lens, dtype):
    check(shift(lens, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "channels", "mixes"), [(1, 24, 6), (5, 300, 1)])
@pytest.mark.parametrize("impl", EVERY)
def test_shifts_of_steps(impl, rows, channels, mixes, dtype):
    check(shift((1,) * rows, channels, mixes, dtype), impl, is_update=True)


def by_parts(args: list) -> tuple[torch.Tensor, torch.Tensor]:
    """rwkv7_step and its states in float64, by the equations of the paper."""
    projected, v_first, ups, biases, k_k, k_a, r_k, weight, bias, state, rows, eps = wide(args)
    w_up, a_up, g_up, *v_up = ups
    d, (heads, size) = len(k_k), r_k.shape
    widths = [d, w_up.shape[1], d, d, *(x.shape[1] for x in v_up), a_up.shape[1], g_up.shape[1]]
    r, w, k, v, *low_v, a, g = projected.split(widths, 1)
    w = -math.exp(-0.5) / (1 + torch.exp(-(torch.tanh(w) @ w_up.T + biases[0])))
    a = 1 / (1 + torch.exp(-(a @ a_up.T + biases[1])))
    g = 1 / (1 + torch.exp(-g)) @ g_up.T
    if low_v:
        v = v + (v_first - v) / (1 + torch.exp(-(low_v[0] @ v_up[0].T + biases[2])))
    kk = (k * k_k).view(-1, heads, size)
    kk = kk / kk.square().sum(-1, keepdim=True).sqrt()
    k = k * (1 + (a - 1) * k_a)
    r, w, k, v, a = (x.view(-1, heads, size) for x in (r, w, k, v, a))
    s = state[rows]
    s = (
        w.exp()[..., None] * s
        - (kk * a)[..., None] * (kk[..., None] * s).sum(-2, True)
        + k[..., None] * v[..., None, :]
    )
    o = (r[..., None] * s).sum(-2)
    o = (o - o.mean(-1, True)) / (o.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
    o = o * weight.view(heads, size) + bias.view(heads, size) + (r * k * r_k).sum(-1, True) * v
    state[rows] = s
    return o.flatten(1) * g, state


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "first"), [(1, False), (5, False), (2, True)])
@pytest.mark.parametrize("impl", EVERY)
def test_a_step_of_a_layer(impl, rows, first, dtype):
    args, state = layer(rows, dtype=dtype, first=first)
    expected, states = by_parts(args)
    found = kernels.rwkv7_step(*args, impl=impl)
    assert worst(found, expected) < TOLERANCE[dtype]
    torch.testing.assert_close(state.double(), states, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("impl", [TRITON])
def test_parts_of_a_layer(impl, first, dtype):
    """What the recurrence takes and what is made of its output, of strided rows, against the reference."""
    x = torch.randn(21, 9 * 48, generator=torch.Generator().manual_seed(1)).to(dtype).split(48, 1)
    k_k, k_a, weight, bias = (part[i].contiguous() for i, part in enumerate(x[:4]))
    mixed = (None, None) if first else x[4:6]
    args = (*x[:4], *mixed, k_k, k_a, 3)
    found, expected = (
        kernels.rwkv7_inputs(*args, impl=impl),
        kernels.rwkv7_inputs(*wide(list(args)), impl="reference"),
    )
    for one, (name, other) in zip(found, expected._asdict().items(), strict=True):
        assert (one.dtype, one.is_contiguous()) == (dtype, True)
        assert worst(one, other) < TOLERANCE[dtype], name
    args = (*x[:5], bias.view(3, 16), weight, bias, 6.4e-4)
    expected = kernels.rwkv7_output(*wide(list(args)), impl="reference")
    assert worst(kernels.rwkv7_output(*args, impl=impl), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("impl", [TORCH, GEMV])
def test_a_product_of_parts(impl, tokens, dtype):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 3, 40, generator=generator).to(dtype)
    weight = torch.randn(30, 40, generator=generator).to(dtype)
    if impl == "gemv" and (tokens > 1 or dtype == torch.float32):  # serves one row of 16 bits
        with pytest.raises(KernelError, match="gemv"):
            kernels.linear_of_parts(x, weight, [4, 20, 6], impl=impl)
        return
    found = kernels.linear_of_parts(x, weight, [4, 20, 6], impl=impl)
    expected = kernels.linear_of_parts(x.double(), weight.double(), [4, 20, 6], impl="reference")
    assert worst(found, expected) < TOLERANCE[dtype]


def test_parts_that_do_not_add_up_are_refused():
    for sizes in ([4, 20], [4, 20, 7]):
        with pytest.raises(ValueError, match="no 3 parts of a weight of 30 rows"):
            kernels.linear_of_parts(torch.ones(1, 3, 8), torch.ones(30, 8), sizes)


@pytest.mark.parametrize("impl", CHUNKED)
def test_one_call_equals_many(impl):
    """A prompt in one call, in chunks cut anywhere, and token by token."""
    whole = heads((37,))
    o, state = whole.run(impl)
    for cuts in ([0, 5, 36, 37], [0, 16, 37], list(range(38))):
        moving, parts = whole.state.clone(), []
        for start, end in itertools.pairwise(cuts):
            part = whole.part(start, end)
            is_update = end - start == 1
            step = None if is_update and impl == "torch" else impl
            kernel = registered[part.kernels[is_update]]
            parts.append(kernel(*part.arguments(is_update, moving), impl=step))
        assert worst(torch.cat(parts), o.double()) < TOLERANCE[torch.float32]
        assert worst(moving[whole.rows_B], state[whole.rows_B].double()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize(("lens", "make"), [((5, 19), heads), ((5, 19), shift)])
@pytest.mark.parametrize("impl", EVERY)
def test_rows_behind_decode_rows_are_passed_as_slices(impl, lens, make):
    """Starts that do not begin at 0: tokens are counted from the first of them."""
    case = make(lens)
    y, state = case.run(impl)
    again = case.state.clone()
    *args, starts, longest = case.arguments(False, again)
    assert torch.equal(registered[case.kernels[0]](*args, starts + 7, longest, impl=impl), y)
    assert torch.equal(again[case.rows_B], state[case.rows_B])


@pytest.mark.parametrize("w", [LEAST, -1e-4])
@pytest.mark.parametrize("impl", CHUNKED)
def test_the_ends_of_decay(impl, w):
    """64 tokens of the steepest decay: exp of minus their sum is 7e16."""
    check(heads((130,), w=w, a=0.5), impl)


@pytest.mark.parametrize("impl", CHUNKED)
def test_nothing_removed_is_plain_linear_attention_with_decay(impl):
    case = heads((40,), a=0.0)
    r, w, k, v = (x.double() for x in case.tokens[:4])
    sums = w.cumsum(0)
    between = (sums[:, None] - sums).exp() * torch.ones(40, 40).tril()[..., None, None]
    plain = torch.einsum("thk,shk,tshk,shv->thv", r, k, between, v)
    start = torch.einsum("thk,hkv->thv", r * sums.exp(), case.state[case.rows_B[0]].double())
    assert worst(case.run(impl)[0], plain + start) < 5 * TOLERANCE[torch.float32]


@pytest.mark.parametrize("impl", CHUNKED)
def test_a_key_that_is_removed_whole_is_overwritten(impl):
    """a = 1, no decay, one key for all tokens: the state holds the last value under it. Powers of the matrix
    of a chunk would have terms of 1e18 that cancel."""
    case = heads((64,), w=0.0, a=1.0)
    kk = case.tokens[4][:1].expand(64, -1, -1)
    case = replace(case, tokens=(*case.tokens[:2], kk, case.tokens[3], kk, case.tokens[5]))
    state = case.run(impl)[1][case.rows_B[0]]
    assert worst(torch.einsum("hk,hkv->hv", kk[0], state), case.tokens[3][-1].double()) < 1e-5


@pytest.mark.parametrize("kernel", ["chunk_rwkv7", "recurrent_rwkv7"])
def test_the_reference_is_exact_in_float64(kernel):
    case = heads((3, 18) if kernel == "chunk_rwkv7" else (1, 1)).to(torch.float64)
    for actual, expected in zip(case.run("reference", kernel != "chunk_rwkv7"), case.answer(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_chunks_equal_steps_in_float64():
    """The two forms of the paper: 1e-10 apart."""
    case = heads((200,), 2, 64).to(torch.float64)
    for actual, expected in zip(case.run("torch"), case.run("reference"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_the_kernels_cannot_serve_is_refused(impl):
    for bad, reason in (
        (heads((3,), size=65), r"heads of up to 64, not \[65, 65\]"),
        (heads((3,)).to(torch.float64), "float64"),
    ):
        for is_update in (False, True):
            with pytest.raises(KernelError, match=reason):
                bad.run(impl, is_update)
