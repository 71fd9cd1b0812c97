"""Every implementation of chunk_gla and recurrent_gla on CUDA, at the sizes of the real model."""

import pytest
import torch

from fastkernels.kernels import registered
from tests.gla_case import check, make, worst

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

HEADS, KEY, VALUE = 5, 256, 512
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def skip_unless_served(kernel: str, impl: str, case) -> None:
    args = (case.q_THK, case.k_THK, case.v_THV, case.gate_THK, case.state_RHKV, case.rows_B)
    if reason := registered[kernel].why_not(impl, args):
        pytest.skip(reason)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lens", [(1,), (16,), (37, 1, 64), (130,)], ids=str)
@pytest.mark.parametrize("impl", ["reference", "torch", "triton", "fla"])
def test_chunks_against_the_recurrence(impl, lens, dtype):
    case = make(lens, HEADS, KEY, VALUE, dtype).to("cuda")
    skip_unless_served("chunk_gla", impl, case)
    check(case, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("impl", ["reference", "triton", "fla"])
def test_steps_against_the_recurrence(impl, rows, dtype):
    case = make((1,) * rows, HEADS, KEY, VALUE, dtype).to("cuda")
    skip_unless_served("recurrent_gla", impl, case)
    check(case, impl, recurrent=True)


@pytest.mark.parametrize("impl", ["triton", "fla"])
def test_steep_gates(impl):
    case = make((70, 16), HEADS, KEY, VALUE, torch.bfloat16, steepness=300.0).to("cuda")
    skip_unless_served("chunk_gla", impl, case)
    check(case, impl)


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_captured_graph_advances_the_states_in_every_replay(recurrent):
    case = make((1,) * 4 if recurrent else (20, 33), HEADS, KEY, VALUE, torch.bfloat16).to("cuda")
    kernel = registered["recurrent_gla" if recurrent else "chunk_gla"]
    state = case.state_RHKV.clone()
    args = [case.q_THK, case.k_THK, case.v_THV, case.gate_THK, state, case.rows_B]
    args += [case.scale] if recurrent else [case.query_starts_B1, case.scale, 33]
    kernel(*args, impl="triton")  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = kernel(*args, impl="triton")
    state.copy_(case.state_RHKV)
    expected = case.state_RHKV.clone()
    eager = [*args[:4], expected, *args[5:]]
    for _ in range(2):
        graph.replay()
        wanted = kernel(*eager, impl="triton")
        assert worst(o, wanted.double().cpu()) == 0
        assert torch.equal(state[case.rows_B], expected[case.rows_B])
