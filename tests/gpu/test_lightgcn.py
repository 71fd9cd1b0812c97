"""The graph recommender's kernels and graphs on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.kernels import registered
from fastkernels.nn.bipartite import normalised, random_edges
from tests.pointwise_cases import check
from tests.recommendation_cases import pair_cases, sparse_cases

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

CASES = [*sparse_cases("sparse_mm"), *sparse_cases("sparse_mm_add")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sparse_mm_against_loops(case, dtype):
    args = [arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in case.make(dtype)]
    kernel = registered[case.kernel]
    served = [impl for impl in kernel.names if kernel.why_not(impl, args) is None]
    starts, columns, _, x = args[:4]
    fits = columns.numel() <= (starts.numel() - 1) * x.shape[0]  # repeated entries may be more
    assert {"triton", "cusparse"} - set(served) == (set() if fits else {"cusparse"})
    for impl in served:
        check(case, dtype, impl, "cuda")


@pytest.mark.parametrize("impl", registered["pair_dot"].names)
@pytest.mark.parametrize("case", pair_cases(), ids=str)
def test_pairs_against_loops(case, impl):
    x, pairs = case.make(torch.float32)
    found = kernels.pair_dot(x.cuda(), pairs.cuda(), impl=impl)
    torch.testing.assert_close(found.cpu().double(), case.answer(x, pairs)[0], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def graph() -> list[torch.Tensor]:
    """As many entries as MovieLens-1M's, and rows of very different lengths."""
    return [part.cuda() for part in normalised(random_edges(6040, 3952, 575_281, 1000, 246, 0), 6040, 3952)]


def test_a_real_graph_and_the_same_bits_every_time(graph):
    x = torch.randn(9992, 64, device="cuda")
    exact = kernels.sparse_mm(*graph[:2], graph[2].double(), x.double(), impl="reference")
    for impl in registered["sparse_mm"].names:
        if registered["sparse_mm"].why_not(impl, (*graph, x)) is None:
            found = kernels.sparse_mm(*graph, x, impl=impl)
            torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
    again = [kernels.sparse_mm(*graph, x, impl="triton") for _ in range(3)]
    assert all(torch.equal(again[0], one) for one in again)


def test_replayed_launches_equal_eager_ones_and_the_cpu():
    made = {"config": "tiny", "seed": 1}
    here, graphed, eager = (
        Model("lightgcn", device="cpu", **made),
        Model("lightgcn", device="cuda", **made),
        Model("lightgcn", device="cuda", enforce_eager=True, **made),
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        users, items = (torch.randint(high, (50,), generator=generator) for high in (12, 9))
        asked = [{"users": users, "items": items}]
        expected = here.run(asked)[0]["scores"]
        for model in (graphed, eager):
            found = model.run(asked)[0]["scores"].cpu()
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert graphed.stats()["score"]["graph_replays"] == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_near(dtype):
    users, items = torch.cartesian_prod(torch.arange(12), torch.arange(9)).T
    asked = [{"users": users, "items": items}]
    expected = Model("lightgcn", config="tiny", device="cpu").run(asked)[0]["scores"]
    found = Model("lightgcn", config="tiny", device="cuda", dtype=dtype).run(asked)[0]["scores"]
    assert (found.float().cpu() - expected).norm() < 0.03 * expected.norm()
