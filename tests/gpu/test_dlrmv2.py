"""The click-through model's kernels and graphs on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.kernels import registered
from tests.pointwise_cases import check
from tests.recommendation_cases import bag_cases, interaction_cases

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

CASES = [*bag_cases(), *interaction_cases()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_implementation_against_loops(case, dtype):
    args = [arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in case.make(dtype)]
    kernel = registered[case.kernel]
    served = [impl for impl in kernel.names if kernel.why_not(impl, args) is None]
    assert {"triton", "torch"} <= set(served)
    for impl in served:
        check(case, dtype, impl, "cuda")


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_large_merged_table(mode):
    """Bytes of a row lie beyond 2^31; bags of MLPerf's lengths, all implementations alike."""
    lengths = torch.tensor([3, 1, 100, 0, 27]).repeat_interleave(256)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int().cuda()
    table = torch.randn(5_000_000, 128, device="cuda")
    ids = torch.randint(len(table), (int(lengths.sum()),), device="cuda", dtype=torch.int32)
    ids[:3] = len(table) - 1
    expected = kernels.embedding_bag(ids, offsets, table.double(), 5, mode, impl="reference")
    for impl in registered["embedding_bag"].names:
        if registered["embedding_bag"].why_not(impl, (ids, offsets, table, 5, mode)) is None:
            found = kernels.embedding_bag(ids, offsets, table, 5, mode, impl=impl)
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)


def requests(rows: list[int], seed: int, ragged: bool = True) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    found = []
    for count in rows:
        most = np.repeat([[1], [3], [0], [2]], count, axis=1)
        lengths = generator.integers(0, most, endpoint=True) if ragged else most
        ids = [generator.integers(0, high, n) for high, n in zip((10, 17, 8, 16), lengths.sum(1))]
        dense = generator.standard_normal((count, 6)).astype(np.float32)
        found.append({"dense": dense, "lengths": lengths, "values": np.concatenate(ids)})
    return found


def logits(model: Model, asked: list[dict[str, Any]]) -> torch.Tensor:
    return torch.cat([answer["logits"].float().cpu() for answer in model.run(asked)])


@pytest.mark.parametrize("config", ["tiny", "tiny-dcn"])
def test_replayed_launches_equal_eager_ones_and_the_cpu(config):
    """Ragged requests that come to nearly as many ids replay one graph."""
    here = Model("dlrmv2", config=config, device="cpu")
    graphed, eager = (
        Model("dlrmv2", config=config, device="cuda", enforce_eager=is_eager) for is_eager in (False, True)
    )
    for seed in range(4):
        asked = requests([64, 64], seed, ragged=False)
        expected = logits(here, asked)
        torch.testing.assert_close(logits(eager, asked), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(logits(graphed, asked), expected, rtol=0, atol=1e-5)
    assert graphed.stats()["score"]["graph_replays"] == 3
    for seed in range(4, 9):
        asked = requests([200, 200, 200], seed)
        torch.testing.assert_close(logits(graphed, asked), logits(here, asked), rtol=0, atol=1e-5)
    stats = graphed.stats()["score"]
    assert stats["graph_replays"] >= 5, stats


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("config", ["tiny", "tiny-dcn"])
def test_sixteen_bits_are_near(config, dtype):
    asked = requests([256], 1)
    expected = logits(Model("dlrmv2", config=config, device="cpu"), asked)
    found = logits(Model("dlrmv2", config=config, device="cuda", dtype=dtype), asked)
    assert (found - expected).norm() < 0.05 * (expected - expected.mean()).norm()
