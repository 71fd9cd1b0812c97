"""chunk_delta_rule and recurrent_delta_rule: every implementation on this machine against one token at a time
in float64, and the equations of the delta rule."""

import itertools
from dataclasses import replace

import pytest
import torch

from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from tests.mamba_cases import StateCase, check, delta, worst
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ALL = [REFERENCE, TORCH, TRITON]
# Around chunks of 16, 32 and 64 tokens: one token, exactly one chunk, one more, several rows, some of which
# have no token.
LENGTHS = [(1,), (64,), (65, 1, 15), (33, 0, 16, 7), ()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", LENGTHS, ids=str)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", ALL)
def test_chunks(impl, by_channel, lens, dtype):
    check(delta(lens, by_channel=by_channel, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_steps(impl, by_channel, dtype):
    check(delta((1,) * 5, by_channel=by_channel, dtype=dtype), impl, is_update=True)


# Heads that share keys or have their own; keys and values of no power of two.
@pytest.mark.parametrize("sizes", [(3, 3, 5, 3), (6, 2, 20, 70), (1, 1, 33, 1)], ids=str)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", ALL)
def test_other_sizes(impl, by_channel, sizes):
    check(delta((1, 17), *sizes, by_channel), impl)
    if impl != "torch":
        check(delta((1, 1), *sizes, by_channel), impl, is_update=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("steepness", [60.0, -9.0])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", ALL)
def test_gates_of_all_sizes(impl, by_channel, steepness, dtype):
    """Sums of logarithms reach thousands within a chunk, whose exponential overflows; and states that hardly
    decay."""
    check(delta((66, 3), by_channel=by_channel, steepness=steepness, dtype=dtype), impl)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", ALL)
def test_a_small_gate_among_large_ones_keeps_its_digits(impl, by_channel):
    case = delta((40,), by_channel=by_channel)
    case.tokens[3].copy_(torch.tensor([200.0, -5.0] * 20).view(-1, *[1] * (case.tokens[3].ndim - 1)))
    check(case, impl)


def constant(case: StateCase, **values: float) -> StateCase:
    """The case with a constant in the place of `gate` (before softplus) or `beta` (before its sigmoid)."""
    tokens = list(case.tokens)
    for name, value in values.items():
        at = {"gate": 3, "beta": 4}[name]
        tokens[at] = torch.full_like(tokens[at], value)
    return replace(case, tokens=tuple(tokens))


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", ALL)
def test_equal_keys_overwrite_each_other(impl, by_channel):
    """With beta 1 and no decay a state returns the value that was written last for its key, also where all
    tokens have one key: A is all ones then, and a power series of its inverse would have terms of 1e17."""
    case = constant(delta((64,), by_channel=by_channel), gate=-1e4, beta=1e4)
    q, k, v = case.tokens[:3]
    q.copy_(k[:1])
    k.copy_(k[:1].clone())
    o, _ = case.run(impl)
    found = o / case.others[2] * (1 + 1e-6 / k.square().sum(-1).repeat_interleave(2, 1)[..., None])
    assert worst(found, v.double()) < 1e-5


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", ALL)
def test_beta_zero_leaves_decay_alone(impl, by_channel):
    case = constant(delta((20,), by_channel=by_channel), beta=-1e4)
    _, state = case.run(impl)
    (_, _, _, g, _), (a_log, bias, _) = case.tokens, case.others
    steps = torch.nn.functional.softplus(g + bias).view(20, 4, -1).double()
    decay = (-a_log.double().exp()[:, None] * steps.sum(0)).exp()
    row = case.rows_B[0]
    assert worst(state[row], decay[..., None] * case.state[row].double()) < 1e-5


@pytest.mark.parametrize("impl", ALL)
def test_equal_gates_of_all_channels_are_a_gate_of_the_head(impl):
    case = delta((37, 5))
    (q, k, v, g, b), (a_log, bias, scale) = case.tokens, case.others
    spread = replace(
        case,
        tokens=(q, k, v, g[..., None].expand(*g.shape, 16).contiguous(), b),
        others=(a_log, bias[:, None].expand(4, 16).contiguous(), scale),
    )
    for one, many in zip(case.run(impl), spread.run(impl), strict=True):
        torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", ALL)
def test_one_call_equals_many(impl, by_channel):
    """A prompt in one call, in chunks cut anywhere, and token by token."""
    whole = delta((23,), by_channel=by_channel)
    o, state = whole.run(impl)
    for cuts in ([0, 5, 22, 23], [0, 16, 18, 19, 23], list(range(24))):
        moving, parts = whole.state.clone(), []
        for start, end in itertools.pairwise(cuts):
            is_update = end - start == 1 and start > 0
            name = None if impl == "torch" and is_update else impl
            arguments = whole.part(start, end).arguments(is_update, moving)
            parts.append(registered[whole.kernels[is_update]](*arguments, impl=name))
        assert worst(torch.cat(parts), o.double()) < 3e-6
        assert worst(moving[whole.rows_B], state[whole.rows_B].double()) < 3e-6


@pytest.mark.parametrize("impl", ALL)
def test_rows_behind_decode_rows_are_passed_as_slices(impl):
    """Starts that do not begin at 0: tokens are counted from the first of them."""
    case = delta((5, 19))
    behind = replace(case, query_starts_B1=case.query_starts_B1 + 7)
    for actual, expected in zip(behind.run(impl), case.run(impl), strict=True):
        assert torch.equal(actual.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_float64_is_exact(impl, by_channel):
    case = delta((3, 18), by_channel=by_channel).to(torch.float64)
    for actual, expected in zip(case.run(impl), case.answer(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_the_kernels_cannot_serve_is_refused(impl):
    for bad, reason in (
        (delta((3,), key_dim=257), "key dimensions up to 256"),
        (delta((3,)).to(torch.float64), "float64"),
    ):
        with pytest.raises(KernelError, match=reason):
            bad.run(impl)
