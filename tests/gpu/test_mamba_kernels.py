"""Every implementation of causal_conv1d, selective_scan and ssd_scan on CUDA, at the sizes of real models."""

import pytest
import torch

from fastkernels.kernels import registered
from tests.mamba_cases import StateCase, check, conv, scan, ssd, worst

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

CHANNELS, TAPS, VALUES = 8192, 4, 16
HEADS, HEAD_DIM, STATE, GROUPS = 128, 64, 128, 8
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
KINDS = {
    "conv": (conv, (CHANNELS, TAPS)),
    "scan": (scan, (CHANNELS, VALUES)),
    "ssd": (ssd, (HEADS, HEAD_DIM, STATE, GROUPS)),
}


def made(kind: str, lens: tuple[int, ...], dtype: torch.dtype, **more) -> StateCase:
    make, sizes = KINDS[kind]
    return make(lens, *sizes, dtype=dtype, **more).to("cuda")


def skip_unless_served(case: StateCase, impl: str, is_update: bool = False) -> None:
    args = case.arguments(is_update, case.state)
    if reason := registered[case.kernels[is_update]].why_not(impl, args):
        pytest.skip(reason)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1,), (2,), (16,), (37, 1, 64), (130,)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impl", ["reference", "torch", "triton", "fla"])
def test_chunks(impl, kind, lens, dtype):
    case = made(kind, lens, dtype)
    skip_unless_served(case, impl)
    check(case, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impl", ["reference", "triton", "fla"])
def test_steps(impl, kind, rows, dtype):
    case = made(kind, (1,) * rows, dtype)
    skip_unless_served(case, impl, is_update=True)
    check(case, impl, is_update=True)


@pytest.mark.parametrize("steepness", [60.0, -9.0])
@pytest.mark.parametrize("kind", ["scan", "ssd"])
def test_steps_of_all_lengths(kind, steepness):
    check(made(kind, (70, 16), torch.bfloat16, steepness=steepness), "triton")


def test_a_convolution_of_many_tiles_reads_the_state_before_it_writes_it():
    """The tiles of a row run at once; each must see the inputs of before."""
    case = made("conv", (4096, 3, 2000), torch.bfloat16)
    (expected_y, expected_state) = case.run("reference")
    for _ in range(20):
        y, state = case.run("triton")
        assert worst(y, expected_y.double().cpu()) < 5e-3
        assert torch.equal(state[case.rows_B], expected_state[case.rows_B])


@pytest.mark.parametrize("is_update", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_graph_advances_the_states_in_every_replay(kind, is_update):
    case = made(kind, (1,) * 4 if is_update else (20, 33), torch.bfloat16)
    kernel = registered[case.kernels[is_update]]
    state = case.state.clone()
    args = case.arguments(is_update, state)
    kernel(*args, impl="triton")  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kernel(*args, impl="triton")
    state.copy_(case.state)
    expected = case.state.clone()
    for _ in range(2):
        graph.replay()
        wanted = kernel(*case.arguments(is_update, expected), impl="triton")
        assert worst(y, wanted.double().cpu()) == 0
        assert torch.equal(state[case.rows_B], expected[case.rows_B])
