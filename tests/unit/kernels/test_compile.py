"""Under torch.compile a kernel is one opaque operator: no graph break, real shapes, mutation, the choice at
run time.
"""

import pytest
import torch
from torch import nn

from fastkernels import kernels
from fastkernels.errors import KernelError
from tests.diffusion_cases import (
    group_norm_cases,
    modulated_layer_norm_cases,
    rope_pairs_cases,
    sinusoidal_cases,
    upsample_cases,
)
from tests.gla_case import make
from tests.mamba_cases import conv, scan
from tests.pointwise_cases import (
    activation_cases,
    add_rms_norm_cases,
    embedding_cases,
    gated_rms_norm_cases,
    glu_cases,
    layer_norm_cases,
    linear_cases,
    linear_float32_cases,
    rms_norm_cases,
    rope_cases,
    softmax_cases,
)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Norm, gate and projection, as a layer calls them."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.rand(32, generator=generator) + 0.5)
        self.up = nn.Parameter(torch.randn(64, 32, generator=generator))

    def forward(self, x, residual):
        y, residual = kernels.add_rms_norm(x, residual, self.weight, 1e-5)
        y = kernels.rms_norm(y, self.weight, 1e-5, impl="reference")
        return kernels.glu(kernels.linear(y, self.up), "silu"), residual


class Store(nn.Module):
    def forward(self, key, value, k_cache, v_cache, slots):
        kernels.store_kv(key * 2, value, k_cache, v_cache, slots)
        return k_cache.sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_module_compiles_whole(backend):
    block = Block()
    x, residual = torch.randn(5, 32), torch.randn(5, 32)
    with torch.no_grad():
        expected = block(x, residual)
        got = torch.compile(block, fullgraph=True, backend=backend)(x, residual)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_mutated_caches_compile(backend):
    key, value, slots = torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.tensor([17, 33, 18])

    def caches():
        return torch.zeros(4, 16, 2, 8), torch.zeros(4, 16, 2, 8)

    expected, got = caches(), caches()
    with torch.no_grad():
        total = Store()(key, value, *expected, slots)
        assert torch.equal(
            torch.compile(Store(), fullgraph=True, backend=backend)(key, value, *got, slots), total
        )
    assert expected[0].any()
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_use_is_seen_when_a_compiled_module_runs():
    block = torch.compile(Block(), fullgraph=True, backend="eager")
    x = torch.randn(5, 32)
    with torch.no_grad():
        block(x, x)
        calls = []
        reference = kernels.registered["glu"].reference
        kernels.registered["glu"].reference = lambda *args: calls.append(1) or reference(*args)
        try:
            with kernels.use("reference"):
                block(x, x)
        finally:
            kernels.registered["glu"].reference = reference
    assert calls


def test_an_implementation_by_name_stays_in_the_graph():
    """`impl` is an argument of the operator: one that cannot serve is refused there too, not replaced."""

    def triton_only(x):
        return kernels.softmax(x, impl="triton")

    compiled = torch.compile(triton_only, fullgraph=True, backend="eager")
    if kernels.registered["softmax"].why_not("triton", (torch.ones(2, 3),)) is None:
        assert torch.equal(compiled(torch.zeros(1, 2)), torch.full((1, 2), 0.5))
    else:
        with pytest.raises(KernelError, match="triton"):
            compiled(torch.ones(2, 3))


CASES = [
    *rms_norm_cases([(3, 16)]), *add_rms_norm_cases([(3, 16)]), *glu_cases([(3, 16)]),
    *softmax_cases([(3, 16)]), *embedding_cases(), *linear_cases([(3, 16, 8)]),
    *linear_float32_cases([(3, 16, 8)]),
    *layer_norm_cases([(3, 16)]), *gated_rms_norm_cases([(3, 16)]), *activation_cases([(3, 16)]),
    *rope_cases([(3, 4, 2, 16, 16)]), *modulated_layer_norm_cases([(2, 3, 16)]),
    *rope_pairs_cases([(2, 3, 2, 8)]), *sinusoidal_cases(), *group_norm_cases([(2, 3, 4, 8, 2)]),
    *upsample_cases([(2, 3, 4, 8)]),
]  # fmt: skip


DTYPES_OF_CASES = [
    *((case, torch.float32) for case in CASES),
    *((case, torch.bfloat16) for case in CASES if case.widens),
]


@pytest.mark.parametrize(("case", "dtype"), DTYPES_OF_CASES, ids=str)
def test_operators_agree_with_their_schema_and_fake(case, dtype):
    """torch's own check: the schema tells the truth about mutation and aliasing, the fake about shapes and
    strides.
    """
    op = getattr(torch.ops.fastkernels, case.kernel).default
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(op, case.make(dtype), test_utils=tests)


def test_operators_that_advance_a_state_agree_with_their_schema():
    case = make((3, 1))
    args = (case.q_THK, case.k_THK, case.v_THV, case.gate_THK, case.state_RHKV.nan_to_num(), case.rows_B)
    ops, tests = torch.ops.fastkernels, ("test_schema", "test_faketensor")
    torch.library.opcheck(
        ops.chunk_gla.default, (*args, case.query_starts_B1, case.scale, 3), test_utils=tests
    )
    step = tuple(x[:2] for x in args[:4]) + args[4:]
    torch.library.opcheck(ops.recurrent_gla.default, (*step, case.scale), test_utils=tests)


@pytest.mark.parametrize("make_case", [conv, scan])
def test_operators_of_mamba_agree_with_their_schema(make_case):
    tests = ("test_schema", "test_faketensor")
    for lens in ((3, 1), (1, 1)):
        case = make_case(lens)
        is_update = lens == (1, 1)
        op = getattr(torch.ops.fastkernels, case.kernels[is_update]).default
        args = case.arguments(is_update, case.state.nan_to_num())
        torch.library.opcheck(op, args, test_utils=tests)
