"""Kernels that split a call and add it up in the same launch: every replay finds its counters at zero, and
graphs replay beside each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import counters
from tests.attention_case import attention_case
from tests.cross_case import cross_case

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
REPLAYS = 200


def a_product(seed: int) -> Callable[[], Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    x, weight = (
        torch.randn(shape, generator=generator, device="cuda").bfloat16() / 64
        for shape in ((16, 4096), (4096, 4096))
    )
    return lambda: kernels.linear(x, weight, impl="triton")


def a_gated_product(seed: int) -> Callable[[], Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    x, weight = (
        torch.randn(shape, generator=generator, device="cuda").bfloat16() / 8
        for shape in ((32, 4096), (4096, 4096))
    )
    return lambda: kernels.linear_glu(x, weight, None, "silu", impl="triton")


def an_attention(seed: int) -> Callable[[], Tensor]:
    case = attention_case(
        [1] * 3, [1900, 3, 700], heads=(32, 8), head_dim=128, dtype=torch.bfloat16, device="cuda", seed=seed
    )
    return lambda: kernels.decode_attention(*case.decode_args, impl="triton")


def a_cross_attention(seed: int) -> Callable[[], Tensor]:
    case = cross_case([1, 4, 0, 1], 1500, num_heads=20, head_dim=64, dtype=torch.float16, seed=seed)
    case = case.on("cuda")
    return lambda: kernels.cross_attention(*case.args, impl="triton")


SPLIT = [a_product, a_gated_product, an_attention, a_cross_attention]


@pytest.mark.parametrize("make", SPLIT)
def test_graphs_replay_beside_each_other(make) -> None:
    calls = [make(seed) for seed in range(2)]
    expected = [call() for call in calls]
    counters.prepare()
    streams, graphs, outputs = [torch.cuda.Stream() for _ in calls], [], []
    for call, stream in zip(calls, streams):
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            outputs.append(call())
    torch.cuda.synchronize()
    for _ in range(REPLAYS):
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for output, right in zip(outputs, expected, strict=True):
        assert torch.equal(output, right)


@pytest.mark.parametrize("make", SPLIT)
def test_calls_repeat_bitwise(make) -> None:
    call = make(seed=5)
    first = call()
    assert all(torch.equal(call(), first) for _ in range(REPLAYS))
