"""causal_conv1d, selective_scan and ssd_scan: every implementation on this machine against one token at a
time in float64.
"""

import itertools

import pytest
import torch

from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from tests.mamba_cases import StateCase, check, conv, scan, ssd, worst
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

EVERY = [REFERENCE, TRITON]
SCANS = [REFERENCE, TORCH, TRITON]
# Around chunks of 16 tokens and pasts of 3: one token, fewer than a past, one and two chunks, one more.
LENGTHS = [(1,), (2,), (16,), (17,), (32, 1, 15), (3, 20, 16, 2), ()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", LENGTHS, ids=str)
@pytest.mark.parametrize("impl", EVERY)
def test_convolutions_of_chunks(impl, lens, dtype):
    check(conv(lens, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", LENGTHS, ids=str)
@pytest.mark.parametrize("impl", SCANS)
def test_scans_of_chunks(impl, lens, dtype):
    check(scan(lens, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1,), (64,), (65, 1, 15), (3, 20, 16, 2), ()], ids=str)
@pytest.mark.parametrize("impl", SCANS)
def test_ssd_scans_of_chunks(impl, lens, dtype):
    check(ssd(lens, dtype=dtype), impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("make", [conv, scan, ssd])
@pytest.mark.parametrize("impl", EVERY)
def test_steps(impl, make, rows, dtype):
    check(make((1,) * rows, dtype=dtype), impl, is_update=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("channels", "taps"), [(1, 2), (130, 3), (24, 7)])
@pytest.mark.parametrize("impl", EVERY)
def test_other_convolutions(impl, channels, taps, bias):
    check(conv((5, 1, 21), channels, taps, bias), impl)
    check(conv((1, 1), channels, taps, bias), impl, is_update=True)


# More channels than a program has, values of no power of two. Triton's interpreter scans a number at a time.
@pytest.mark.parametrize(("channels", "values"), [(8, 1), (33, 3), (3, 20)])
@pytest.mark.parametrize("impl", SCANS)
def test_other_states(impl, channels, values):
    check(scan((1, 17), channels, values), impl)
    if impl != "torch":
        check(scan((1, 1), channels, values), impl, is_update=True)


# Heads that share B and C or have their own; channels and values of no power of two.
@pytest.mark.parametrize(
    ("heads", "channels", "values", "groups"), [(3, 5, 3, 3), (6, 40, 20, 2), (2, 16, 1, 1)]
)
@pytest.mark.parametrize("impl", SCANS)
def test_other_heads(impl, heads, channels, values, groups):
    check(ssd((1, 17), heads, channels, values, groups), impl)
    if impl != "torch":
        check(ssd((1, 1), heads, channels, values, groups), impl, is_update=True)


@pytest.mark.parametrize("steepness", [5.0, 60.0, -9.0])
@pytest.mark.parametrize("make", [scan, ssd])
@pytest.mark.parametrize("impl", SCANS)
def test_steps_of_all_lengths(impl, make, steepness):
    """Decays that vanish within one token, and steps whose softplus has few digits left beside one."""
    check(make((18, 3), steepness=steepness), impl)


@pytest.mark.parametrize("impl", SCANS)
def test_a_short_step_among_long_ones_keeps_its_digits(impl):
    """Sums of a chunk's exponents reach thousands, the difference of two of them may be far below one."""
    case = ssd((40,), heads=2)
    case.tokens[1].mul_(torch.tensor([200.0, 0.01] * 20)[:, None])
    check(case, impl)


@pytest.mark.parametrize("make", [conv, scan, ssd])
@pytest.mark.parametrize("impl", SCANS)
def test_one_call_equals_many(impl, make):
    """A prompt in one call, in chunks cut anywhere, some shorter than a past, and token by token."""
    if make is conv and impl == "torch":
        pytest.skip("convolutions have no such implementation")
    whole = make((23,))
    y, state = whole.run(impl)
    for cuts in ([0, 5, 22, 23], [0, 16, 18, 19, 23], list(range(24))):
        moving, parts = whole.state.clone(), []
        for start, end in itertools.pairwise(cuts):
            is_update = end - start == 1 and start > 0
            kernel = registered[whole.kernels[is_update]]
            name = None if impl == "torch" and is_update else impl
            parts.append(kernel(*whole.part(start, end).arguments(is_update, moving), impl=name))
        assert worst(torch.cat(parts), y.double()) < 2e-6
        assert worst(moving[whole.rows_B], state[whole.rows_B].double()) < 2e-6


@pytest.mark.parametrize("make", [conv, scan, ssd])
@pytest.mark.parametrize("impl", SCANS)
def test_rows_behind_decode_rows_are_passed_as_slices(impl, make):
    """Starts that do not begin at 0: tokens are counted from the first of them."""
    if make is conv and impl == "torch":
        pytest.skip("convolutions have no such implementation")
    case = make((5, 19))
    behind = StateCase(
        case.kernels, case.tokens, case.others, case.state, case.rows_B, case.query_starts_B1 + 7
    )
    for actual, expected in zip(behind.run(impl), case.run(impl), strict=True):
        assert torch.equal(actual.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("make", [conv, scan, ssd])
def test_the_reference_is_exact_in_float64(make):
    case = make((3, 18)).to(torch.float64)
    for actual, expected in zip(case.run("reference"), case.answer(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("impl", [TRITON])
def test_what_the_kernels_cannot_serve_is_refused(impl):
    for bad, reason in (
        (scan((3,), values=257), "256 values a channel"),
        (ssd((3,), values=257), "256 values a channel"),
        (ssd((3,)).to(torch.float64), "float64"),
        (scan((3,)).to(torch.float64), "float64"),
        (conv((3,)).to(torch.float64), "float64"),
    ):
        with pytest.raises(KernelError, match=reason):
            bad.run(impl)
