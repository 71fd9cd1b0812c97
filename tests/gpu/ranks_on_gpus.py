"""A rank on a GPU: python tests/gpu/ranks_on_gpus.py RANK RANKS STORE [KERNEL ...]. 0 where all agree.

Every kernel of collectives against its reference over the same ranks, called eagerly, again with other sizes
in between, and replayed from a CUDA graph with inputs that have changed. Rank r is on GPU r and they meet by
NCCL. With ONE_GPU=1 all are on GPU 0: what NCCL serves is left out, and what the reference needs goes over
the host, by Gloo.

It says each call before it makes it, and goes on where one is wrong. A call that does not end in time ends
the rank with 3. SIGUSR1 makes it say where it is.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from fastkernels import kernels
from fastkernels.kernels import symmetric
from fastkernels.kernels.group import Distributed, group, use_group

OFF = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
ON_ONE_GPU = os.environ.get("ONE_GPU") == "1"
# Over memory that the ranks share, without NCCL; `parts` of expert_parallel with the choice below.
OWN = {
    "all_reduce": ("triton", "one_shot", "two_shot"),
    "reduce_scatter": ("triton",),
    "all_gather": ("triton",),
    "all_to_all": ("triton",),
    "all_reduce_norm": ("triton",),
    "gemm_all_reduce": ("overlapped",),
    "gemm_reduce_scatter": ("overlapped",),
    "all_gather_gemm": ("overlapped",),
    "ep_dispatch": ("triton",),
    "ep_combine": ("triton",),
    "expert_parallel": ("parts", "overlapped"),
}
PARTS = {"ep_dispatch": "triton", "ep_combine": "triton"}
CALL_S, CASE_S = 15, 45  # of what is launched; of all that a case does, on the host and with compiling
Make = Callable[[], tuple[Any, ...]]


class Hangs(Exception):
    """What a rank launched has not ended."""


class Rank:
    def __init__(self, rank: int, ranks: int, device: torch.device) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device
        self.generator = torch.Generator(device).manual_seed(rank)
        self.served: Counter[str] = Counter()
        self.wrong: list[str] = []

    def drawn(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        value = torch.randn(shape, generator=self.generator, device=self.device)
        return (value * scale).to(dtype)

    def cases(self, dtypes: tuple[torch.dtype, ...]) -> list[tuple[str, Make]]:
        """Kernel, and what draws its arguments. Sizes, and which memory is shared, change from one to the
        next."""
        found: list[tuple[str, Make]] = []
        shapes = [(1, 64), (1, 4096), (7, 61), (64, 8192), (1024, 4096), (3, 8)]
        if not ON_ONE_GPU:
            shapes.append((4096, 4096))
        for dtype in dtypes:
            for shape in shapes:
                found.append(("all_reduce", lambda s=shape, d=dtype: (self.drawn(*s, dtype=d),)))
            for name, rest in (
                ("reduce_scatter", (0,)),
                ("reduce_scatter", (-1,)),
                ("all_gather", (0,)),
                ("all_gather", (-1,)),
                ("all_to_all", ()),
            ):
                for rows, width in ((self.ranks, 96), (8 * self.ranks, 1024), (256 * self.ranks, 2048)):
                    found.append(
                        (
                            name,
                            lambda s=(rows, width), d=dtype, rest=rest: (self.drawn(*s, dtype=d), *rest),
                        )
                    )
            for tokens in (1, 5, 300):
                found.append(("all_reduce_norm", lambda t=tokens, d=dtype: self._norm(t, d)))
        for name in ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm"):
            for rows in (256 * self.ranks, 1024 * self.ranks):
                found.append(
                    (name, lambda r=rows: (self.drawn(r, 512), self.drawn(768, 512, scale=512**-0.5)))
                )
        for tokens, nobody in ((1, False), (130, False), (600, False), (600, True)):
            given = tokens, nobody
            for fp8 in (False, True):
                found.append(("ep_dispatch", lambda g=given, f=fp8: self._dispatch(*g, f)))
                found.append(("expert_parallel", lambda g=given, f=fp8: self._experts(*g, f)))
            found.append(("ep_combine", lambda g=given: self._combine(*g)))
        # Rows as models have them, which a program takes by several warps.
        found.append(("ep_dispatch", lambda: self._dispatch(2048, False, False, 4096)))
        found.append(("ep_combine", lambda: self._combine(2048, False, 4096)))
        return found

    def _norm(self, tokens: int, dtype: torch.dtype) -> tuple[Any, ...]:
        row = self.drawn(tokens, 4096, dtype=dtype)
        return row, torch.ones_like(row), torch.full_like(row[0], 0.75), 1e-5

    def _choices(self, tokens: int, nobody: bool) -> tuple[Tensor, Tensor]:
        """Ids and weights of two experts a token. nobody: the last rank gets nothing, and the first has
        nothing to send."""
        experts = 4 * self.ranks
        scores = torch.rand(tokens, experts, generator=self.generator, device=self.device)
        ids = scores.argsort(1)[:, :2].int()
        if nobody:
            ids = torch.where((ids >= experts - 4) | (self.rank == 0), -1, ids).int()
        return ids, torch.rand(tokens, 2, generator=self.generator, device=self.device)

    def _dispatch(self, tokens: int, nobody: bool, fp8: bool, width: int = 512) -> tuple[Any, ...]:
        return self.drawn(tokens, width), *self._choices(tokens, nobody), 4 * self.ranks, fp8

    def _combine(self, tokens: int, nobody: bool, width: int = 512) -> tuple[Any, ...]:
        ids, _ = self._choices(tokens, nobody)
        return self.drawn(tokens * self.ranks, width), ids, 4 * self.ranks, None

    def _experts(self, tokens: int, nobody: bool, fp8: bool) -> tuple[Any, ...]:
        ids, weights = self._choices(tokens, nobody)
        w13, w2 = self.drawn(4, 512, 512, scale=512**-0.5), self.drawn(4, 512, 256, scale=256**-0.5)
        return self.drawn(tokens, 512), weights, ids, w13, w2, 4 * self.ranks, fp8

    def check(self, name: str, make: Make) -> None:
        """Every implementation that serves the call, against the reference."""
        kernel, arguments = kernels.registered[name], make()
        expected = _parts(kernel.reference(*arguments))
        for implementation in OWN[name] if ON_ONE_GPU else kernel.names[1:]:
            if kernel.why_not(implementation, arguments) is None:
                self._noted(name, implementation, arguments, self._compare, expected)
                self.served[f"{name}={implementation}"] += 1

    def check_replays(self, name: str, make: Make) -> None:
        """Three replays, each of two calls, whose inputs are new."""
        arguments = make()
        for implementation in OWN[name]:
            if kernels.registered[name].why_not(implementation, arguments) is None:
                self._noted(name, implementation, arguments, self._replay, make)
                self.served[f"{name}={implementation} replayed"] += 1

    def _noted(self, name: str, implementation: str, arguments: Any, check: Callable, *rest: Any) -> None:
        what = (
            f"{name}={implementation}{' replayed' if check == self._replay else ''} of {_shapes(arguments)}"
        )
        print(f"at {time.monotonic():.2f} {what}", flush=True)
        faulthandler.dump_traceback_later(CASE_S, exit=True)
        try:
            check(name, implementation, arguments, *rest)
        except Hangs:
            raise
        except Exception:
            self.note(f"{what}\n{traceback.format_exc()}")
            self.wait()  # where the device serves no more, this ends the rank
        finally:
            faulthandler.cancel_dump_traceback_later()

    def note(self, wrong: str) -> None:
        self.wrong.append(wrong.partition("\n")[0])
        print(f"WRONG {wrong}", flush=True)

    def _compare(self, name: str, implementation: str, arguments: Any, expected: Any) -> None:
        found = _parts(kernels.registered[name](*arguments, impl=implementation))
        self.wait()
        for one, other in zip(found, expected, strict=True):
            _agree(one, other)

    def _replay(self, name: str, implementation: str, arguments: Any, make: Make) -> None:
        kernel = kernels.registered[name]
        kernel(*arguments, impl=implementation)
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(2):
                results = kernel(*arguments, impl=implementation)
        for _ in range(3):
            for one, other in zip(arguments, make(), strict=True):
                if isinstance(one, Tensor):
                    one.copy_(other)
            graph.replay()
            self.wait()
            for one, other in zip(_parts(results), _parts(kernel.reference(*arguments)), strict=True):
                _agree(one, other)

    def check_bits(self) -> None:
        """All ranks have the same bits, and NaNs and infinities come through."""
        for rows in (1, 64, 1024):
            x = self.drawn(rows, 4096)
            x[0, 0] = torch.nan
            x[0, 1] = torch.inf if self.rank else -torch.inf
            self._noted("all_reduce", "triton", (x,), self._same_bits)

    def _same_bits(self, name: str, implementation: str, arguments: Any) -> None:
        y = kernels.registered[name](*arguments, impl=implementation).view(torch.int32)  # NCCL sends no int16
        self.wait()
        told = group().gather(y)
        assert all(torch.equal(one, y) for one in told), "other bits on another rank"
        assert bool(y.view(torch.bfloat16)[0, :2].isnan().all()), "a NaN was lost"

    def wait(self) -> None:
        """Until the device has done all; not by torch.cuda.synchronize, which a hang would not leave."""
        event = torch.cuda.Event()
        event.record()
        deadline = time.monotonic() + CALL_S
        while not event.query():
            if time.monotonic() > deadline:
                raise Hangs(f"rank {self.rank}: not done in {CALL_S} s")
            time.sleep(0.0005)


class OnOneGpu(Distributed):
    """Gloo's group: what is gathered goes over the host, as bytes, so that every dtype can."""

    def gather(self, x: Tensor) -> list[Tensor]:
        x_bytes = x.contiguous().view(torch.uint8).cpu()
        return [one.to(x.device).view(x.dtype) for one in super().gather(x_bytes)]


def _parts(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _shapes(arguments: tuple[Any, ...]) -> str:
    return ", ".join(
        f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" if isinstance(one, Tensor) else str(one)
        for one in arguments
    )


def _agree(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype, f"{found.dtype}, not {expected.dtype}"
    assert found.shape == expected.shape, f"{found.shape}, not {expected.shape}"
    if not expected.is_floating_point():
        assert torch.equal(found, expected), f"{int((found != expected).sum())} of {found.numel()} differ"
        return
    off = float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-6))
    assert off <= OFF[expected.dtype], f"{off:.3g} off, where {OFF[expected.dtype]} is allowed"


def join(rank: int, ranks: int, store: str) -> tuple[torch.device, Distributed]:
    device = torch.device("cuda", 0 if ON_ONE_GPU else rank)
    torch.cuda.set_device(device)
    options: dict[str, Any] = {"store": FileStore(store, ranks), "rank": rank, "world_size": ranks}
    if not ON_ONE_GPU:
        dist.init_process_group("nccl", device_id=device, **options)
        return device, Distributed()
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    symmetric._unshared = lambda ranks: None  # it asks for as many GPUs as ranks
    dist.init_process_group("gloo", **options)
    return device, OnOneGpu()


def check_all(here: Rank, names: list[str]) -> None:
    dtypes = (torch.bfloat16,) if ON_ONE_GPU and here.ranks > 2 else tuple(OFF)
    cases = [(name, make) for name, make in here.cases(dtypes) if name in names]
    with kernels.use(**PARTS) if ON_ONE_GPU else kernels.use():
        for name, make in cases + cases[::-1]:
            here.check(name, make)
        for name, make in cases:
            here.check_replays(name, make)
        if "all_reduce" in names:
            here.check_bits()
    expected = {
        f"{name}={implementation}{how}"
        for name in names
        for implementation in OWN[name]
        for how in ("", " replayed")
    }
    if unserved := sorted(expected - here.served.keys()):
        here.note(f"served no call: {', '.join(unserved)}")


def main(rank: int, ranks: int, store: str, *names: str) -> None:
    faulthandler.register(signal.SIGUSR1)
    faulthandler.dump_traceback_later(2 * CASE_S, exit=True)
    status, began = 1, time.monotonic()
    try:
        device, joined = join(rank, ranks, store)
        with use_group(joined), torch.no_grad():
            here = Rank(rank, ranks, device)
            check_all(here, list(names or OWN))
            here.wait()
            print(f"in {time.monotonic() - began:.0f} s: {dict(here.served)}")
            print(f"{len(here.wrong)} wrong: {'; '.join(dict.fromkeys(here.wrong))}", flush=True)
            dist.barrier()
            status = 1 if here.wrong else 0
    except Hangs:
        traceback.print_exc()
        status = 3
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
