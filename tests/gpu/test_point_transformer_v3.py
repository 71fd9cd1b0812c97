"""Point Transformer V3 on a GPU: its kernels against loops over voxels, its graphs, and the real backbone."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.kernels import registered
from fastkernels.kernels.serialize import ORDERS
from tests.cloud_cases import CONVOLUTIONS, cloud, convolution, convolved

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

REAL = [((900, 700), 32, 32, 3), ((300, 200), 256, 256, 3), ((900, 700), 6, 32, 5), ((77,), 512, 512, 3)]


def served(name: str, args: tuple) -> list[str]:
    return [impl for impl in registered[name].names if registered[name].why_not(impl, args) is None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [*CONVOLUTIONS, *REAL], ids=str)
def test_convolutions_are_those_of_a_loop_over_voxels(shape, dtype):
    sizes, inputs, outputs, taps = shape
    x, neighbors, weight, bias = convolution(sizes, inputs, outputs, taps, side=11)
    given = [each.to(dtype) for each in (x, weight, bias)]
    wanted = convolved(given[0], neighbors, given[1], given[2])
    args = (given[0].cuda(), neighbors.cuda(), given[1].cuda(), given[2].cuda())
    assert {"triton", "torch"} <= set(served("sparse_conv", args))
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for impl in served("sparse_conv", args):
        found = kernels.sparse_conv(*args, impl=impl)
        torch.testing.assert_close(found.double().cpu(), wanted, rtol=tolerance, atol=tolerance)


def test_orders_tables_and_largest_values_are_those_of_the_cpu():
    grid, batch = cloud((900, 700, 11), side=40)
    here = kernels.serialize(grid, batch, 6, ORDERS, impl="reference")
    clusters = len((here[0][0] >> 3).unique())
    coarse = kernels.coarsen(here[0], here[1], clusters, impl="reference")
    x = torch.randn(len(grid), 64, generator=torch.Generator().manual_seed(0))
    calls = {
        "serialize": ((grid, batch, 6, ORDERS), here),
        "coarsen": ((here[0], here[1], clusters), coarse),
        "sparse_neighbors": ((grid, batch, 5), None),
        "segment_max": ((x, here[1][0], coarse[4]), None),
    }
    for name, (args, wanted) in calls.items():
        kernel = getattr(kernels, name)
        wanted = kernel(*args, impl="reference") if wanted is None else wanted
        there = tuple(arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in args)
        for impl in served(name, there):
            found = kernel(*there, impl=impl)
            pairs = zip(found, wanted) if isinstance(wanted, tuple) else [(found, wanted)]
            assert all(torch.equal(one.cpu(), other) for one, other in pairs), (name, impl)


def asked(sizes: tuple[int, ...], seed: int, side: int = 20) -> list[dict]:
    generator = torch.Generator().manual_seed(seed)
    grid, batch = cloud(sizes, seed, side)
    return [
        {"grid_coord": grid[batch == b], "feat": torch.randn(size, 6, generator=generator)}
        for b, size in enumerate(sizes)
    ]


def features(model: Model, requests: list[dict]) -> torch.Tensor:
    return torch.cat([answer["feat"].float().cpu() for answer in model.run(requests)])


def test_replayed_launches_equal_eager_ones_and_the_cpu():
    """A graph of each set of counts: the same clouds are captured by the second call, and replayed."""
    made = {"config": "tiny", "dtype": "float32"}
    graphed, eager = (
        Model("point_transformer_v3", device="cuda", enforce_eager=flag, **made) for flag in (False, True)
    )
    here = Model("point_transformer_v3", device="cpu", **made)
    for seed in (1, 1, 2, 1, 2, 2):
        requests = asked((300, 200 + seed, 9), seed)
        for one in requests:
            one["feat"] = one["feat"] + torch.randn(1)
        expected = features(here, requests)
        for model in (eager, graphed):
            torch.testing.assert_close(features(model, requests), expected, rtol=0, atol=1e-4)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (2, 4), stats


def test_the_real_backbone_agrees_with_the_cpu():
    requests = asked((2000, 1900, 60), 3, side=200)
    found, wanted = (
        features(Model("point_transformer_v3", size="full", device=device), requests)
        for device in ("cuda", "cpu")
    )
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_sixteen_bits_are_near(dtype, tolerance):
    requests = asked((300, 200, 9), 4)
    found, wanted = (
        features(Model("point_transformer_v3", config="tiny", device=device, dtype=of), requests)
        for device, of in (("cuda", dtype), ("cpu", "float32"))
    )
    assert float((found - wanted).norm() / wanted.norm()) < tolerance
