"""Grouped products in CUDA C++ for Hopper: values of every tile, other routing in a graph, bits that repeat.

Each set of constants is compiled at its first call, for a few seconds.
"""

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import counters, registered
from fastkernels.kernels import grouped_linear_hopper as grouped
from tests.moe_cases import Shape, aligned, grouped_answer, grouped_arguments, ids_of
from tests.pointwise_cases import poisoned, to_device, worst_row_error

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs Hopper", allow_module_level=True)

pytestmark = pytest.mark.gpu
# One for each tile; a tail of inputs, experts without slots, several tiles of an expert, parts of tiles.
SHAPES = [
    Shape(1, 8, 2, 4096, 1096),
    Shape(33, 8, 2, 272, 200),
    Shape(150, 6, 2, 160, 72, experts_used=3),
    Shape(700, 5, 2, 272, 328),
    Shape(64, 128, 8, 272, 328),
]


def products(args: tuple, impl: str) -> list[torch.Tensor]:
    """The first product with its activation, and the product by itself."""
    x, weight, order, starts, weights = args
    return [
        kernels.grouped_linear_glu(x, weight, order, starts, "silu", impl=impl),
        kernels.grouped_linear_glu(x, weight, order, starts, "gelu_tanh", impl=impl),
        kernels.grouped_linear(x, weight, order, starts, weights, impl=impl),
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(shape, dtype):
    args = grouped_arguments(shape, dtype, shape.tokens % 2 == 0, True)
    on_gpu = to_device(args, "cuda")
    assert registered["grouped_linear"].why_not("hopper", on_gpu) is None
    answer = grouped_answer(shape, args[0], args[1], None)
    gate, up = answer.to(dtype).double().chunk(2, dim=1)
    expected = [
        torch.nn.functional.silu(gate) * up,
        torch.nn.functional.gelu(gate, approximate="tanh") * up,
        grouped_answer(shape, args[0], args[1], args[4]),
    ]
    with poisoned():
        for y, wanted in zip(products(on_gpu, "hopper"), expected, strict=True):
            assert worst_row_error(y, wanted) <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_a_graph_with_other_routing_and_bits_that_repeat(shape):
    args = to_device(grouped_arguments(shape, torch.bfloat16, True, True), "cuda")
    products(args, "hopper")
    counters.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = products(args, "hopper")
    for seed in (1, 2, 3):
        used = min(shape.experts, shape.top_k + seed)
        other = aligned(ids_of(Shape(shape.tokens, shape.experts, shape.top_k, experts_used=used), seed),
                        shape.experts)  # fmt: skip
        args[2].copy_(other[0])
        args[3].copy_(other[1])
        graph.replay()
        for y, again in zip(captured, products(args, "hopper"), strict=True):
            assert torch.equal(y, again)


def test_all_tiles_are_reached():
    tiles = {grouped.tile_for(shape.tokens * shape.top_k, shape.experts) for shape in SHAPES}
    assert tiles == {tile for _, tile in grouped.TILES}
