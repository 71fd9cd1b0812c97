"""What a device can do at best: bytes moved, within it and to it from another, and operations in a second.

From `registry/devices/<slug>.yaml` where somebody measured; else measured here, once in a process, in a
second or two. A CPU is always measured here: hosts differ, and its caches make the rate depend on how much is
moved.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain

import torch

from fastkernels import registry
from fastkernels.kernels.policy import slug

_TERA = 1e12
_MIB = 1 << 20
_CPU_FOOTPRINTS = (_MIB // 2, 8 * _MIB, 128 * _MIB)  # about: a core's own cache, the shared cache, memory
_CUDA_FOOTPRINT = 1 << 30
_LINK_BYTES = 1 << 28
_CPU_GEMM, _CUDA_GEMM = 384, 8192
_CPU_PIECE = _MIB // 8
_REPEATS = {"cpu": 50, "cuda": 5}  # the best of these: a ceiling, not a typical rate


@dataclass(frozen=True)
class Ceilings:
    """`copy` are (footprint in bytes, bytes read + written per second), small to large; `read` of pure
    reads."""

    device: str
    copy: tuple[tuple[int, float], ...]
    read: float | None
    cache_bytes: int
    measured_here: bool
    gemm: Callable[[str], float | None]
    link: Callable[[], float | None] = lambda: None

    def copy_bytes_s(self, footprint: int) -> float:
        """The rate of a copy of this footprint: of the largest measured one that is not larger."""
        return next((rate for size, rate in reversed(self.copy) if size <= footprint), self.copy[0][1])

    def read_bytes_s(self, footprint: int) -> float:
        """Pure reads may pass the copy rate (8 % on an H200)."""
        return self.read or self.copy_bytes_s(footprint)

    def write_bytes_s(self, footprint: int) -> float:
        """The rate at which a copy's writes must go for 1/R + 1/W = 2/copy to hold."""
        return 1 / (2 / self.copy_bytes_s(footprint) - 1 / self.read_bytes_s(footprint))

    def flops_s(self, dtype: str) -> float | None:
        """Matrix-product operations per second; None where this dtype has no ceiling."""
        return self.gemm(dtype)

    def link_bytes_s(self) -> float | None:
        """Of what one GPU gets from another; None where there is no other."""
        return self.link()


@lru_cache
def ceilings(device: str) -> Ceilings:
    """The ceilings of `cpu` or `cuda`."""
    name = "cpu" if device == "cpu" else torch.cuda.get_device_name()
    facts = registry.device(slug(name))
    if facts is None or facts.ceilings is None:
        return measure(device)
    known = facts.ceilings
    rates = {str(dtype): tflops * _TERA for dtype, tflops in known.gemm_tflops.items()}
    return Ceilings(
        device=name,
        copy=((0, known.copy_tb_s * _TERA),),
        read=known.read_tb_s * _TERA if known.read_tb_s else None,
        cache_bytes=int((facts.l2_mib or 0) * _MIB),
        measured_here=False,
        gemm=rates.get,
        link=_link_rate,
    )


def measure(device: str) -> Ceilings:
    """Measure this machine. Matrix products follow on first demand.

    A CPU is measured with one thread, for each that this process may use: threads that wait for each other
    give a thousandth of the rate where other work takes turns with them.
    """
    if device == "cpu":
        name, cache_bytes = "this CPU", 0
        copy = tuple((size, torch.get_num_threads() * _cpu_copy_rate(size)) for size in _CPU_FOOTPRINTS)
    else:
        name = torch.cuda.get_device_name()
        cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        copy = ((_CUDA_FOOTPRINT, _cuda_copy_rate(_CUDA_FOOTPRINT)),)
    return Ceilings(
        device=name,
        copy=copy,
        read=None,
        cache_bytes=cache_bytes,
        measured_here=True,
        gemm=lambda dtype: _gemm_rate(device, dtype),
        link=_link_rate if device == "cuda" else lambda: None,
    )


def _cpu_copy_rate(footprint: int) -> float:
    """Of one thread that walks over the footprint in pieces; the median piece, because a scheduler takes the
    core away in the middle of few of them."""
    source = torch.ones(footprint // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    pieces = list(zip(target.split(_CPU_PIECE), source.split(_CPU_PIECE)))
    with _one_thread():
        walks = max(2, _REPEATS["cpu"] // len(pieces))  # the first one finds the memory
        times = [[_seconds("cpu", partial(to.copy_, of)) for to, of in pieces] for _ in range(walks)]
    return 2 * len(source[:_CPU_PIECE]) / statistics.median(chain.from_iterable(times[1:]))


def _cuda_copy_rate(footprint: int) -> float:
    source = torch.ones(footprint // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return footprint / _best_s("cuda", lambda: target.copy_(source))


@lru_cache
def _link_rate() -> float | None:
    """Of a copy in one direction, between the first two GPUs."""
    if torch.cuda.device_count() < 2:
        return None
    source = torch.ones(_LINK_BYTES, dtype=torch.uint8, device="cuda:0")
    target = torch.empty_like(source, device="cuda:1")
    return _LINK_BYTES / _best_s("cuda", lambda: target.copy_(source))


@lru_cache
def _gemm_rate(device: str, dtype: str) -> float | None:
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return None
    n = _CPU_GEMM if device == "cpu" else _CUDA_GEMM
    a, b = (torch.randn(n, n, device=device).to(kind) for _ in range(2))
    if device != "cpu":
        return 2 * n**3 / _best_s(device, lambda: a @ b)
    threads = torch.get_num_threads()
    with _one_thread():
        rate = threads * 2 * n**3 / _best_s(device, lambda: a @ b)
    # Where a CPU has no products of 16 bits, PyTorch multiplies matrices of them at 2 GFLOP/s, but a matrix
    # by a vector at 20. Whoever converts them has the rate of 32 bits.
    return max(rate, _gemm_rate(device, "float32") or 0) if kind.itemsize < 4 else rate


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _best_s(device: str, call: Callable[[], object]) -> float:
    """The shortest of many calls, after two for warming up."""
    return min([_seconds(device, call) for _ in range(2 + _REPEATS[device])][2:])


def _seconds(device: str, call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
