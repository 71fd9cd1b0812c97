"""chunk_gla and recurrent_gla: every implementation on this machine against the recurrence in float64."""

import itertools

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.gla_case import check, make, worst
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]
# Around chunks of 16 and 32 tokens: one token, exactly one and two chunks, one more, several rows, some of
# which have no token.
LENGTHS = [(1,), (16,), (17,), (32, 1, 15), (3, 40, 16, 7), (31, 64), (33, 65), (0, 35, 0, 2), ()]


GATED = pytest.mark.parametrize("steepness", [1.0, None], ids=["gated", "retention"])


@GATED
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", LENGTHS, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_chunks_against_the_recurrence(impl, lens, dtype, steepness):
    check(make(lens, dtype=dtype, steepness=steepness), impl)


@GATED
@pytest.mark.parametrize("sizes", [(1, 16, 16), (3, 7, 5), (2, 32, 80), (1, 20, 130)], ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_other_dimensions(impl, sizes, steepness):
    heads, key_dim, value_dim = sizes
    check(make((5, 21), heads, key_dim, value_dim, steepness=steepness), impl)
    if impl != "torch":
        check(make((1, 1), heads, key_dim, value_dim, steepness=steepness), impl, recurrent=True)


@pytest.mark.parametrize("impl", ALL)
def test_heads_of_retention_keep_their_own_shares(impl):
    """Ten of them, from 1 - 1/32 to 1 - 1/16384, which bfloat16 does not tell from 1; after n tokens without
    a key a state is what each head keeps to the power of n, also where the last chunk is short."""
    case = make((70,), heads=10, steepness=None)
    check(case, impl)
    case.k_THK[:] = 0
    _, state = case.run(impl)
    kept = torch.tensor([(1 - 2.0 ** (-5 - h)) ** 70 for h in range(10)])[:, None, None]
    row = int(case.rows_B)
    torch.testing.assert_close(state[row], case.state_RHKV[row] * kept, rtol=70 * 2**-24, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", ALL)
def test_steep_gates_neither_overflow_nor_lose_digits(impl, dtype):
    """Sums of gates reach -300 within a chunk: exp(-sum) overflows float32, and so would the reciprocal."""
    case = make((40, 16, 33), dtype=dtype, steepness=300.0)
    assert case.gate_THK[:16].sum(0).min() < -100
    check(case, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_a_gate_of_minus_infinity_forgets(impl, dtype):
    """As one of -1000 does, wherever in a chunk it is."""
    case = make((43,), dtype=dtype)
    closed = ((5, 0), (16, 3), (31, 1), (32, 15), (40, 7))
    answers = []
    for gate in (-1000.0, -torch.inf):
        for token, channel in closed:
            case.gate_THK[token, :, channel] = gate
        o, state = case.run(impl)
        answers.append((o, state[case.rows_B]))
    for low, lowest in zip(*answers, strict=True):
        assert torch.equal(low, lowest)


@GATED
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_steps_against_the_recurrence(impl, rows, dtype, steepness):
    check(make((1,) * rows, dtype=dtype, steepness=steepness), impl, recurrent=True)


@GATED
@pytest.mark.parametrize("impl", ALL)
def test_one_call_equals_many(impl, steepness):
    """A prompt in one call, in chunks cut anywhere, and token by token."""
    whole = make((23,), steepness=steepness)
    o, state = whole.run(impl)
    for cuts in ([0, 5, 21, 23], [0, 16, 23], list(range(24))):
        moving, parts = whole.state_RHKV.clone(), []
        for start, end in itertools.pairwise(cuts):
            tokens = (whole.q_THK, whole.k_THK, whole.v_THV, whole.gate_THK)
            q, k, v, g = (None if x is None else x[start:end] for x in tokens)
            if end - start == 1:
                step = None if impl == "torch" else impl
                parts.append(kernels.recurrent_gla(q, k, v, g, moving, whole.rows_B, whole.scale, impl=step))
                continue
            starts = torch.tensor([0, end - start], dtype=torch.int32)
            args = (q, k, v, g, moving, whole.rows_B, starts, whole.scale, end - start)
            parts.append(kernels.chunk_gla(*args, impl=impl))
        assert worst(torch.cat(parts), o.double()) < 2e-6
        assert worst(moving[whole.rows_B], state[whole.rows_B].double()) < 2e-6


@pytest.mark.parametrize("impl", ALL)
def test_rows_behind_decode_rows_are_passed_as_slices(impl):
    """Starts that do not begin at 0: tokens are counted from the first of them."""
    case = make((5, 19))
    o, state = case.run(impl)
    again = case.state_RHKV.clone()
    args = (case.q_THK, case.k_THK, case.v_THV, case.gate_THK, again, case.rows_B)
    shifted = kernels.chunk_gla(*args, case.query_starts_B1 + 7, case.scale, 19, impl=impl)
    assert torch.equal(shifted, o)
    assert torch.equal(again[case.rows_B], state[case.rows_B])


@pytest.mark.parametrize("impl", ALL)
def test_a_closed_gate_forgets_and_an_open_one_keeps_all(impl):
    case = make((20,))
    case.gate_THK[:] = 0
    o, _ = case.run(impl)
    pairs_HTT = torch.einsum("thk,shk->hts", case.q_THK, case.k_THK).tril() * case.scale
    plain = torch.einsum("hts,shv->thv", pairs_HTT, case.v_THV)
    start = torch.einsum("thk,hkv->thv", case.q_THK, case.state_RHKV[case.rows_B[0]]) * case.scale
    assert worst(o, (plain + start).double()) < 3e-6
    case.gate_THK[9] = -200
    o, _ = case.run(impl)
    pairs_HTT[:, 9:, :9] = 0
    plain = torch.einsum("hts,shv->thv", pairs_HTT, case.v_THV)
    assert worst(o[9:], plain[9:].double()) < 3e-6


def wider(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@GATED
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_float64_is_exact(impl, steepness):
    case = make((3, 18), steepness=steepness)
    wide = type(case)(*(wider(value) for value in vars(case).values()))
    for actual, expected in zip(wide.run(impl), wide.answer(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_the_kernels_cannot_serve_is_refused(impl):
    for bad, reason in (
        (make((3,), key_dim=257), "key dimensions up to 256"),
        (make((3,), dtype=torch.float64), "float64"),
    ):
        with pytest.raises(KernelError, match=reason):
            bad.run(impl)
