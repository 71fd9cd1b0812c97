"""Ranks as processes that share memory, in which Triton's interpreter runs collectives as GPUs would.

TRITON_INTERPRET=1 python tests/unit/kernels/ranks_interpreted.py RANKS      ends with 0 where all agree

Each rank's slots lie in memory that all of them have at the same address, as GPUs have each other's.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import signal
import sys
import tempfile
import types
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from fastkernels import kernels
from fastkernels.kernels import exchange_triton, parallel_gemm_overlap, symmetric
from fastkernels.kernels.group import Distributed, use_group

HALF = 1 << 16  # bytes of half an arena
TIMEOUT_S = 100


def main(ranks: int) -> int:
    memory, scratch = ([_shared(2 * HALF) for _ in range(ranks)] for _ in range(2))
    for one in memory:
        one.fill_(symmetric.ABSENT)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        pids = [_fork(rank, memory, scratch, store) for rank in range(ranks)]
        failed = False
        for _ in pids:
            _, status = os.wait()
            if status and not failed:  # the others wait for it
                failed = True
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    return int(failed)


def _shared(size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def _fork(rank: int, memory: list[Tensor], scratch: list[Tensor], store: str) -> int:
    if pid := os.fork():
        return pid
    status = 1
    try:
        signal.alarm(TIMEOUT_S)
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        size = len(memory)
        dist.init_process_group("gloo", store=FileStore(store, size), rank=rank, world_size=size)
        waits = torch.ones(1, dtype=torch.int32)
        bases = torch.tensor([one.data_ptr() for one in (*memory, waits)])
        epochs = torch.zeros(symmetric.MOST_PROGRAMS, dtype=torch.int32)
        shared = symmetric.Arena(rank, size, HALF // size // 16 * 16, bases, epochs, waits, memory[rank])
        symmetric.arena = lambda slot_bytes, device: _of_size(shared, slot_bytes)
        symmetric.unsupported = lambda x, slot_bytes: None
        symmetric.unshared = lambda: "no library runs here"
        exchange_triton.TWO_STEPS_FROM = dict.fromkeys(range(3, 9), 4096)
        parallel_gemm_overlap.ROWS_OF_A_PIECE = 2  # several pieces
        _fake_streams()
        symmetric.workspace = lambda size, device: (scratch[rank], _Handle(scratch))
        with use_group(Distributed()):
            for turn in range(2):
                _check_all(rank, turn)
                _check_overlap(rank, turn)
        assert bool((memory[rank] == symmetric.ABSENT).all()), "a slot was left full"
        dist.barrier()
        waits.zero_()
        with use_group(Distributed()):
            if rank == 0:  # what the others would send does not come, and is not waited for
                kernels.registered["all_reduce"](torch.ones(8), impl="triton")
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


class _Handle:
    """Of memory that all ranks have, as PyTorch's for GPUs."""

    def __init__(self, memory: list[Tensor]) -> None:
        self.memory, self.barrier = memory, dist.barrier

    def get_buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        return self.memory[rank][:size].view(dtype).view(shape)


def _fake_streams() -> None:
    """On a CPU everything happens in the order in which it is asked for."""
    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = cuda.current_stream = lambda *_, **__: types.SimpleNamespace(
        wait_stream=lambda _: None, wait_event=lambda _: None, record=lambda _: None
    )
    cuda.stream = lambda _: contextlib.nullcontext()


def _of_size(shared: symmetric.Arena, slot_bytes: int) -> symmetric.Arena:
    assert slot_bytes <= shared.slot, f"{slot_bytes} bytes do not fit a slot of {shared.slot}"
    return shared


def _check_all(rank: int, turn: int) -> None:
    generator = torch.Generator().manual_seed(100 * turn + rank)
    size = dist.get_world_size()

    def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    for dtype in (torch.float32, torch.bfloat16):
        x = drawn(4 * size, 24, dtype=dtype)
        x[0, 0], x[1, 1] = float("nan"), float("-inf")
        odd = drawn(3, 61, dtype=dtype)
        large = drawn(4 * size, 512 // size, dtype=dtype)
        _agree("all_reduce", x)
        _agree("all_reduce", odd)
        _agree("all_reduce", large.repeat(1, 4))
        _agree("reduce_scatter", x, 0)
        _agree("reduce_scatter", drawn(5, 8 * size, dtype=dtype), -1)
        _agree("all_gather", odd, -1)
        _agree("all_gather", x, 0)
        _agree("all_to_all", x)
        row, residual, weight = (
            drawn(5, 32, dtype=dtype),
            torch.ones(5, 32, dtype=dtype),
            drawn(32, dtype=dtype),
        )
        _agree("all_reduce_norm", row, residual, weight, 1e-5)
        _ragged(rank, turn, drawn(6, 128, dtype=dtype), generator)


def _check_overlap(rank: int, turn: int) -> None:
    generator, size = torch.Generator().manual_seed(100 * turn + rank), dist.get_world_size()
    x, weight = (torch.randn(rows, 8, generator=generator) for rows in (4 * size, 6))
    for name in ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm"):
        expected = kernels.registered[name](x, weight, impl="reference")
        torch.testing.assert_close(getattr(parallel_gemm_overlap, name)(x, weight), expected)
    uneven = torch.randn(4 * size + 3, 8, generator=generator)
    expected = kernels.registered["gemm_all_reduce"](uneven, weight, impl="reference")
    torch.testing.assert_close(parallel_gemm_overlap.gemm_all_reduce(uneven, weight), expected)
    experts, weights = 2 * size, torch.rand(7, 2, generator=generator)
    tokens = torch.randn(7, 32, generator=generator)
    ids = torch.rand(7, experts, generator=generator).argsort(1)[:, :2].int()
    w13, w2 = (torch.randn(2, *shape, generator=generator) for shape in ((8, 32), (32, 4)))
    given = tokens, weights, ids, w13, w2, experts, False
    found = (
        kernels.registered["expert_parallel"].implementation("overlapped").function("expert_parallel")(*given)
    )
    expected = kernels.registered["expert_parallel"](*given, impl="reference")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def _ragged(rank: int, turn: int, x_TD: Tensor, generator: torch.Generator) -> None:
    """Ranks with fewer tokens than others, and in one turn a rank that nobody chooses."""
    experts = 2 * dist.get_world_size()
    ids_TK = torch.stack([torch.randperm(experts, generator=generator)[:2] for _ in range(len(x_TD))]).int()
    ids_TK[len(x_TD) - rank * turn % 7 :] = -1
    if turn == 1:
        ids_TK = torch.where(ids_TK >= experts - 2, -1, ids_TK).int()
    weights_TK = torch.rand(ids_TK.shape, generator=generator)
    for use_fp8 in (False, True):
        _agree("ep_dispatch", x_TD, ids_TK, weights_TK, experts, use_fp8)
    row_SD, received_SK, _ = kernels.ep_dispatch(x_TD, ids_TK, weights_TK, experts, impl="parts")
    row_SD = row_SD + rank
    _agree("ep_combine", row_SD, ids_TK, experts, None)
    _agree("ep_combine", row_SD, ids_TK, experts, received_SK)


def _agree(name: str, *args: object) -> None:
    """Implementations that serve the call, with the reference; over Gloo those of libraries. The interpreter
    cuts bits off where a GPU rounds to bfloat16."""
    kernel = kernels.registered[name]
    serving = [impl for impl in kernel.names[1:] if kernel.why_not(impl, args) is None]
    assert len(serving) == 2, f"{name}: {serving}"
    expected = _parts(kernel(*args, impl="reference"))
    found = [_parts(kernel(*args, impl=impl)) for impl in serving]
    for one, other in (pair for results in found for pair in zip(expected, results, strict=True)):
        assert other.dtype == one.dtype
        finite = one.isfinite() if one.is_floating_point() else torch.ones_like(one, dtype=torch.bool)
        assert torch.equal(one[~finite].nan_to_num(), other[~finite].nan_to_num()), name
        off = (one - other)[finite].double().norm() / one[finite].double().norm().clamp_min(1)
        assert off <= (2e-2 if one.dtype == torch.bfloat16 else 1e-6), f"{name}: {off:.2g} off"


def _parts(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
