"""Collectives against what float64 says, of ranks that one process simulates; and of processes, over Gloo and
in Triton's interpreter (ranks_interpreted.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fastkernels import kernels
from fastkernels.kernels import symmetric
from fastkernels.kernels.group import Sketched, simulated, use_group


def drawn(ranks: int, *shape: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(ranks)]


def on_each(ranks: int, call):
    return simulated([lambda rank=rank: call(rank) for rank in range(ranks)])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_plain_collectives(ranks):
    x_R = drawn(ranks, 2 * ranks, 3 * ranks)
    total = sum(x_R)
    for rank, y in enumerate(on_each(ranks, lambda r: kernels.reduce_scatter(x_R[r], 0))):
        torch.testing.assert_close(y, total[2 * rank : 2 * rank + 2])
    for rank, y in enumerate(on_each(ranks, lambda r: kernels.reduce_scatter(x_R[r]))):
        torch.testing.assert_close(y, total[:, 3 * rank : 3 * rank + 3])
        assert y.is_contiguous()
    for dim in (0, -1):
        for y in on_each(ranks, lambda r, dim=dim: kernels.all_gather(x_R[r], dim)):
            assert torch.equal(y, torch.cat(x_R, dim))
    for rank, y in enumerate(on_each(ranks, lambda r: kernels.all_to_all(x_R[r]))):
        assert torch.equal(y, torch.cat([x[2 * rank : 2 * rank + 2] for x in x_R]))


def test_a_sum_that_is_normalised_is_rounded_before_the_residual_comes():
    x_R = [torch.full((1, 2), value, dtype=torch.bfloat16) for value in (256.0, 1.0)]
    residual = torch.tensor([[-256.0, -256.0]], dtype=torch.bfloat16)
    weight = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    for y, total in on_each(2, lambda r: kernels.all_reduce_norm(x_R[r], residual, weight, 1.0)):
        assert total.tolist() == [[0.0, 0.0]], "257 is 256 in bfloat16"
        assert y.tolist() == [[0.0, 0.0]]
    x_R = drawn(3, 4, 8)
    residual, weight = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    for y, total in on_each(3, lambda r: kernels.all_reduce_norm(x_R[r], residual, weight, 1e-5)):
        torch.testing.assert_close(total, sum(x_R) + residual)
        torch.testing.assert_close(y, F.rms_norm(sum(x_R) + residual, (8,), weight, 1e-5))


@pytest.mark.parametrize("impl", ["reference", "parts"])
def test_products_of_split_layers(impl):
    ranks = 3
    x_R, w_R = drawn(ranks, 6, 5), drawn(ranks, 4, 5, seed=1)
    total = sum(x @ w.T for x, w in zip(x_R, w_R))
    for y in on_each(ranks, lambda r: kernels.gemm_all_reduce(x_R[r], w_R[r], impl=impl)):
        torch.testing.assert_close(y, total)
    for rank, y in enumerate(
        on_each(ranks, lambda r: kernels.gemm_reduce_scatter(x_R[r], w_R[r], impl=impl))
    ):
        torch.testing.assert_close(y, total[2 * rank : 2 * rank + 2])
    for rank, y in enumerate(on_each(ranks, lambda r: kernels.all_gather_gemm(x_R[r], w_R[r], impl=impl))):
        torch.testing.assert_close(y, torch.cat(x_R) @ w_R[rank].T)


class Layer:
    """Experts of a layer, all of them, and tokens of each rank with their choices; -1 where a rank has fewer
    tokens, and nobody chooses the last rank's experts with `skewed`."""

    def __init__(self, ranks: int, tokens: int, skewed: bool) -> None:
        generator = torch.Generator().manual_seed(tokens)
        self.ranks, self.experts, width, inner = ranks, 2 * ranks, 6, 4
        self.x_R = drawn(ranks, tokens, width)
        scores_R = [torch.rand(tokens, self.experts, generator=generator) for _ in range(ranks)]
        self.ids_R = [scores.argsort(1)[:, :2].int() for scores in scores_R]
        if skewed:
            self.ids_R = [ids.remainder(self.experts - 2).int() for ids in self.ids_R]
        self.ids_R[0][tokens // 2 :] = -1
        self.weights_R = [
            torch.rand(tokens, 2, generator=generator, dtype=torch.float64) for _ in range(ranks)
        ]
        self.w13, self.w2 = (drawn(self.experts, *shape)[:] for shape in ((2 * inner, width), (width, inner)))

    def own(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.stack(w[2 * rank : 2 * rank + 2]) for w in (self.w13, self.w2))  # type: ignore[return-value]

    def dense(self, rank: int) -> torch.Tensor:
        """Token by token, by the equations."""
        y = torch.zeros_like(self.x_R[rank])
        for t, (x, ids, weights) in enumerate(zip(self.x_R[rank], self.ids_R[rank], self.weights_R[rank])):
            for expert, weight in zip(ids.tolist(), weights):
                if expert >= 0:
                    gate, up = (self.w13[expert] @ x).chunk(2)
                    y[t] += weight * (self.w2[expert] @ (F.silu(gate) * up))
        return y

    def made(self, rank: int, impl: str) -> torch.Tensor:
        """In float32, in which libraries multiply by experts."""
        x, weights, w13, w2 = (one.float() for one in (self.x_R[rank], self.weights_R[rank], *self.own(rank)))
        return kernels.expert_parallel(x, weights, self.ids_R[rank], w13, w2, self.experts, impl=impl)


@pytest.mark.parametrize("impl", ["reference", "parts"])
@pytest.mark.parametrize(
    ("ranks", "tokens", "skewed"), [(2, 7, False), (3, 5, True), (2, 0, False), (4, 1, True)]
)
def test_experts_of_all_ranks_serve_ragged_tokens(ranks, tokens, skewed, impl):
    """Without tokens, with a rank that has none, and with one that nobody chooses."""
    layer = Layer(ranks, tokens, skewed)
    for rank, y in enumerate(on_each(ranks, lambda r: layer.made(r, impl))):
        torch.testing.assert_close(y, layer.dense(rank).float())


def test_dispatch_says_who_gets_what():
    x_R = [torch.full((2, 1), 1.0), torch.full((2, 1), 2.0)]
    ids_R = [torch.tensor(rows, dtype=torch.int32) for rows in ([[0, 3], [1, 0]], [[2, -1], [-1, -1]])]
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.125]])
    first, second = on_each(2, lambda r: kernels.ep_dispatch(x_R[r], ids_R[r], weights, 4))
    assert [one.tolist() for one in first] == [
        [[1.0], [1.0], [0.0], [0.0]],
        [[0, -1], [1, 0], [-1, -1], [-1, -1]],
        [[0.25, 0], [0.5, 0.125], [0, 0], [0, 0]],
    ]
    assert second[0].flatten().tolist() == [1.0, 0.0, 2.0, 0.0]
    assert second[1].tolist() == [[-1, 1], [-1, -1], [0, -1], [-1, -1]]


def test_float8_on_the_way_costs_a_sixteenth_of_a_value_and_no_more():
    x = drawn(1, 3, 256)[0].float() * torch.tensor([1e-6, 1.0, 1e6])[:, None]
    x[1, 128:] = 0
    ids, weights = torch.zeros(3, 1, dtype=torch.int32), torch.ones(3, 1)
    ((found, *_),) = on_each(1, lambda r: kernels.ep_dispatch(x, ids, weights, 1, True))
    largest = x.unflatten(1, (2, 128)).abs().amax(-1, keepdim=True)
    off = (found - x).unflatten(1, (2, 128)).abs()
    assert bool((off <= x.unflatten(1, (2, 128)).abs() / 16 + largest / 448 / 2**9).all())
    assert not torch.equal(found, x)
    assert bool((found[1, 128:] == 0).all())


def test_combine_leaves_out_what_no_expert_made():
    ids_R = [torch.tensor([[0], [1]], dtype=torch.int32), torch.tensor([[1], [-1]], dtype=torch.int32)]
    x_R = [
        torch.tensor([[1.0], [torch.nan], [torch.nan], [torch.nan]]),
        torch.tensor([[torch.inf], [2.0], [3.0], [4.0]]),
    ]
    first, second = on_each(2, lambda r: kernels.ep_combine(x_R[r], ids_R[r], 2))
    assert first.flatten().tolist() == [1.0, 2.0]
    assert second.flatten().tolist() == [3.0, 0.0]


def test_what_ranks_do_not_divide_is_an_error():
    x, ids, weights = torch.ones(4, 6), torch.zeros(4, 1, dtype=torch.int32), torch.ones(4, 1)
    with use_group(Sketched(3)):
        for call, words in (
            (lambda: kernels.reduce_scatter(x, 0), "3 ranks do not divide 4 elements"),
            (lambda: kernels.all_to_all(x), "3 ranks do not divide 4 rows"),
            (lambda: kernels.gemm_reduce_scatter(x, x), "3 ranks do not divide 4 tokens"),
            (lambda: kernels.ep_dispatch(x, ids, weights, 8), "3 ranks do not divide 8 experts"),
            (lambda: kernels.ep_combine(x, ids, 3), "3 ranks with 4 tokens do not have 4 rows"),
            (lambda: kernels.ep_dispatch(x, ids, weights, 3, True), "no whole groups of 128"),
            (lambda: kernels.expert_parallel(x, weights, ids, x[None], x[None], 9), "share out 9 experts"),
        ):
            with pytest.raises(ValueError, match=words):
                call()


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.whole)])
def test_processes_that_share_memory_exchange_it_as_gpus_do(ranks):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "ranks_interpreted.py"), str(ranks)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_slots_hold_what_they_were_made_for(ranks):
    """Where ranks do not divide a power of two, and at its edge."""
    for power in (26, 27, 31):
        for less in (0, 2, 16, 48):
            slot_bytes = (1 << power) // ranks - less
            half = symmetric._half(slot_bytes, ranks)
            slot = half // ranks // symmetric.LINE * symmetric.LINE
            assert slot_bytes <= slot
            assert slot * ranks <= half
