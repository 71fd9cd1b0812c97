"""all_reduce: the sum over ranks that one process simulates, and over two real ones."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.group import Distributed, group, simulated, use_group

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def drawn(ranks: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for _ in range(ranks)]


def calls(x_R, compute):
    return [lambda x=x: compute(x) for x in x_R]


def summed(x_R) -> list[torch.Tensor]:
    return simulated(calls(x_R, lambda x: kernels.all_reduce(x, impl="reference")))


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_rank_gets_the_sum_rounded_once(ranks, dtype):
    x_R = drawn(ranks, 7, 61, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = x_R[0].to(wide)
    for x in x_R[1:]:
        expected = expected + x.to(wide)
    for y in summed(x_R):
        assert y.dtype == dtype
        assert torch.equal(y, expected.to(dtype))


def test_what_bfloat16_would_lose_on_the_way_is_kept():
    x_R = [torch.full((3,), value, dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0)]
    assert all(y.tolist() == [258.0] * 3 for y in summed(x_R))


def test_one_call_may_meet_several_collectives():
    x_R = drawn(3, 4)

    def twice(x):
        return kernels.all_reduce(x + kernels.all_reduce(x, impl="reference"), impl="reference")

    for y in simulated(calls(x_R, twice)):
        torch.testing.assert_close(y, 4 * sum(x_R))


def test_what_a_rank_does_to_what_it_gathered_reaches_nobody_else():
    def in_place(x):
        total, *others = group().gather(x)
        for other in others:
            total += other
        return total

    x_R = drawn(3, 4)
    for y in simulated(calls(x_R, in_place)):
        torch.testing.assert_close(y, sum(x_R))


def test_ranks_know_their_place():
    assert simulated([lambda: (group().rank, group().size)] * 3) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("most", [0, 1])
def test_a_rank_that_leaves_a_collective_out_is_an_error(most):
    def some(x):
        for _ in range(most + (group().rank != 1)):
            x = kernels.all_reduce(x, impl="reference")
        return x

    with pytest.raises(RuntimeError, match="1 of 3 ranks end before the others' next collective"):
        simulated(calls(drawn(3, 4), some))


def test_nothing_stays_in_flight():
    summed(drawn(2, 4))
    with pytest.raises(RuntimeError, match="No group in flight"):
        group()
    with pytest.raises(ZeroDivisionError):
        simulated([lambda: 1 // 0])
    with pytest.raises(RuntimeError, match="No group in flight"):
        group()


def test_without_a_group_there_is_nobody_to_add_up():
    with pytest.raises(RuntimeError, match="No group in flight"):
        kernels.all_reduce(torch.ones(2), impl="reference")


def test_torch_does_not_serve_ranks_of_one_process():
    with pytest.raises(KernelError, match="the ranks are simulated in one process"):
        simulated(calls(drawn(2, 4), lambda x: kernels.all_reduce(x, impl="torch")))
    for y in simulated(calls(drawn(2, 4), kernels.all_reduce)):
        torch.testing.assert_close(y, sum(drawn(2, 4)))


def check_result(x: torch.Tensor, impl: str) -> torch.Tensor:
    """The sum of a strided x, which is new, contiguous, and leaves x as it is."""
    before = x.clone()
    y = kernels.all_reduce(x, impl=impl)
    assert y.is_contiguous()
    assert y.shape == x.shape
    assert y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert torch.equal(x, before)
    return y


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_strided_input_gives_a_new_contiguous_tensor_and_stays(ranks):
    x_R = [x.T for x in drawn(ranks, 5, 3)]
    for y in simulated(calls(x_R, lambda x: check_result(x, "reference"))):
        torch.testing.assert_close(y, sum(x_R))


def _rank(rank: int, place: str, answers) -> None:
    try:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", store=dist.FileStore(place, 2), rank=rank, world_size=2)
        answers.send(_of_each_dtype(rank))
        dist.barrier()
    except BaseException as error:
        answers.send(repr(error))
    finally:
        os._exit(0)


def _of_each_dtype(rank: int) -> list:
    found = []
    with use_group(Distributed()):
        for dtype in DTYPES:
            x = drawn(2, 5, 3, dtype=dtype)[rank].T
            found.append([check_result(x, impl).double().tolist() for impl in ("torch", "reference")])
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_torch_adds_up_what_two_processes_bring_as_the_reference_does(tmp_path):
    """Two summands have one order, and one rounding."""
    context = multiprocessing.get_context("fork")
    heard, answers = zip(*(context.Pipe(duplex=False) for _ in range(2)))
    ranks = [
        context.Process(target=_rank, args=(rank, str(tmp_path / "store"), answers[rank]), daemon=True)
        for rank in range(2)
    ]
    try:
        for process in ranks:
            process.start()
        assert all(end.poll(60) for end in heard)
        first, second = (end.recv() for end in heard)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    assert first == second
    for dtype, (by_torch, by_reference) in zip(DTYPES, first, strict=True):
        expected = sum(x.T.double() for x in drawn(2, 5, 3, dtype=dtype)).to(dtype).double().tolist()
        assert by_torch == by_reference == expected
