"""A rank on a GPU: python tests/gpu/ranks_on_gpus.py RANK RANKS STORE. Ends with 0 where all agrees.

Every kernel of collectives against its reference over the same ranks, called eagerly, again with other sizes
in between, and replayed from a CUDA graph with inputs that have changed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels.group import Distributed, use_group

OFF = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


class Rank:
    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.device = rank, ranks, torch.device("cuda", rank)
        self.generator = torch.Generator(self.device).manual_seed(rank)
        self.wrong: list[str] = []

    def drawn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        value = torch.randn(shape, generator=self.generator, device=self.device)
        return (value * scale).to(dtype)

    def calls(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Kernel and arguments: sizes, and which memory is shared, change from one to the next."""
        found: list[tuple[str, tuple[Any, ...]]] = []
        for dtype in OFF:
            for rows, width in ((1, 64), (1, 4096), (7, 61), (64, 8192), (1024, 4096), (3, 8), (4096, 4096)):
                found.append(("all_reduce", (self.drawn(rows, width, dtype=dtype),)))
            x = self.drawn(8 * self.ranks, 1024, dtype=dtype)
            found += [("reduce_scatter", (x, 0)), ("reduce_scatter", (x, -1)), ("all_gather", (x, 0))]
            found += [("all_gather", (x[:3], -1)), ("all_to_all", (x,))]
            for tokens in (1, 5, 300):
                row = self.drawn(tokens, 4096, dtype=dtype)
                residual, weight = torch.ones_like(row), torch.full_like(row[0], 0.75)
                found.append(("all_reduce_norm", (row, residual, weight, 1e-5)))
        rows = 1024 * self.ranks
        x, weight = self.drawn(rows, 512), self.drawn(768, 512, scale=0.04)
        found += [
            (name, (x, weight)) for name in ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")
        ]
        return found + self._expert_calls()

    def _expert_calls(self) -> list[tuple[str, tuple[Any, ...]]]:
        found: list[tuple[str, tuple[Any, ...]]] = []
        experts, width, inner = 4 * self.ranks, 512, 256
        w13 = self.drawn(4, 2 * inner, width, scale=width**-0.5)
        w2 = self.drawn(4, width, inner, scale=inner**-0.5)
        for tokens, nobody in ((1, False), (130, False), (600, False), (600, True)):
            scores = torch.rand(tokens, experts, generator=self.generator, device=self.device)
            ids = scores.argsort(1)[:, :2].int()
            if nobody:  # the last rank gets nothing, and the first has nothing to send
                ids = torch.where((ids >= experts - 4) | (self.rank == 0), -1, ids).int()
            weights = torch.rand(tokens, 2, generator=self.generator, device=self.device)
            x, back = self.drawn(tokens, width), self.drawn(tokens * self.ranks, width)
            found += [("ep_dispatch", (x, ids, weights, experts, use_fp8)) for use_fp8 in (False, True)]
            found.append(("ep_combine", (back, ids, experts, None)))
            found += [("expert_parallel", (x, weights, ids, w13, w2, experts, fp8)) for fp8 in (False, True)]
        return found

    def check(self, name: str, arguments: tuple[Any, ...]) -> int:
        """How many implementations served the call. What is wrong is noted: one run tells all of it."""
        kernel, served = kernels.registered[name], 0
        expected = _parts(kernel(*arguments, impl="reference"))
        for implementation in kernel.names[1:]:
            try:
                found = _parts(kernel(*arguments, impl=implementation))
                served += 1
                for one, other in zip(found, expected, strict=True):
                    _agree(f"{name}={implementation}", arguments, one, other)
            except KernelError:
                continue
            except (AssertionError, RuntimeError) as error:
                self.wrong.append(f"{name}={implementation}: {error}".partition("\n")[0])
                torch.cuda.synchronize(self.device)
        return served

    def check_replays(self, name: str, implementation: str, arguments: tuple[Any, ...]) -> None:
        """Three replays, each of two calls, whose floating-point inputs are new."""
        kernel = kernels.registered[name]
        kernel(*arguments, impl=implementation)
        torch.cuda.synchronize(self.device)
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(2):
                results = kernel(*arguments, impl=implementation)
        for _ in range(3):
            arguments[0].copy_(self.drawn(*arguments[0].shape, dtype=arguments[0].dtype))
            graph.replay()
            for one, other in zip(_parts(results), _parts(kernel(*arguments, impl="reference")), strict=True):
                _agree(f"{name}={implementation} replayed", arguments, one, other)

    def check_bits(self) -> None:
        """All ranks have the same bits, and NaNs and infinities come through."""
        for rows in (1, 64, 4096):
            x = self.drawn(rows, 4096)
            x[0, 0] = torch.nan
            x[0, 1] = torch.inf if self.rank else -torch.inf
            y = kernels.all_reduce(x, impl="triton").view(torch.int16)
            told = [torch.empty_like(y) for _ in range(self.ranks)]
            dist.all_gather(told, y)
            assert all(torch.equal(one, y) for one in told), f"{rows} rows: other bits on another rank"
            assert bool(y.view(torch.bfloat16)[0, :2].isnan().all())


def _parts(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _agree(what: str, arguments: tuple[Any, ...], found: Tensor, expected: Tensor) -> None:
    shapes = [tuple(one.shape) for one in arguments if isinstance(one, Tensor)]
    assert found.dtype == expected.dtype, what
    if not expected.is_floating_point():
        assert torch.equal(found, expected), f"{what} of {shapes}"
        return
    off = float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-6))
    assert off <= OFF[expected.dtype], f"{what} of {shapes} {expected.dtype}: {off:.3g} off"


def main(rank: int, ranks: int, store: str) -> None:
    torch.cuda.set_device(rank)
    backend = FileStore(store, ranks)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", store=backend, rank=rank, world_size=ranks, device_id=device)
    with use_group(Distributed()), torch.no_grad():
        here = Rank(rank, ranks)
        served: dict[str, int] = {}
        for name, arguments in here.calls() + here.calls()[::-1]:
            served[name] = max(served.get(name, 0), here.check(name, arguments))
        assert not here.wrong, "\n".join(dict.fromkeys(here.wrong))
        here.check_bits()
        for name, implementation, arguments in (
            ("all_reduce", "triton", (here.drawn(16, 4096),)),
            ("all_reduce", "triton", (here.drawn(2048, 4096),)),
            ("all_reduce", "torch", (here.drawn(16, 4096),)),
            ("all_reduce_norm", "triton", (here.drawn(4, 4096), here.drawn(4, 4096), here.drawn(4096), 1e-5)),
            ("gemm_reduce_scatter", "overlapped", (here.drawn(1024 * ranks, 512), here.drawn(768, 512))),
            ("all_gather_gemm", "overlapped", (here.drawn(1024, 512), here.drawn(768, 512))),
            ("gemm_all_reduce", "overlapped", (here.drawn(2048, 512), here.drawn(768, 512))),
        ):
            here.check_replays(name, implementation, arguments)
        if rank == 0:
            print(served, flush=True)
            assert served["all_reduce"] == 4, served
            assert min(served.values()) >= 2, served
        torch.cuda.synchronize()
        dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
