"""What a device can do at best: bytes moved and operations in a second.

From `registry/devices/<slug>.yaml` where somebody measured; else measured here, once in a process, in a
second or two. A CPU is always measured here: hosts differ, and its caches make the rate depend on how much is
moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from fastkernels import registry
from fastkernels.kernels.policy import slug

_TERA = 1e12
_MIB = 1 << 20
_CPU_FOOTPRINTS = (_MIB // 2, 8 * _MIB, 128 * _MIB)  # about: a core's own cache, the shared cache, memory
_CUDA_FOOTPRINT = 1 << 30
_CPU_GEMM, _CUDA_GEMM = 1024, 8192
_REPEATS = 5  # the best of these: a ceiling, not a typical rate


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
    )


def measure(device: str) -> Ceilings:
    """Measure this machine, with the threads that this process may use. Matrix products follow on first
    demand."""
    footprints = _CPU_FOOTPRINTS if device == "cpu" else (_CUDA_FOOTPRINT,)
    return Ceilings(
        device="this CPU" if device == "cpu" else torch.cuda.get_device_name(),
        copy=tuple((size, _copy_rate(device, size)) for size in footprints),
        read=None,
        cache_bytes=0 if device == "cpu" else torch.cuda.get_device_properties(0).L2_cache_size,
        measured_here=True,
        gemm=lambda dtype: _gemm_rate(device, dtype),
    )


def _copy_rate(device: str, footprint: int) -> float:
    source = torch.ones(footprint // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return footprint / _best_s(device, lambda: target.copy_(source))


@lru_cache
def _gemm_rate(device: str, dtype: str) -> float | None:
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return None
    n = _CPU_GEMM if device == "cpu" else _CUDA_GEMM
    a, b = (torch.randn(n, n, device=device).to(kind) for _ in range(2))
    return 2 * n**3 / _best_s(device, lambda: a @ b)


def _best_s(device: str, call: Callable[[], object]) -> float:
    """The shortest of a few calls, after two for warming up."""

    def once() -> float:
        begin = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    return min([once() for _ in range(2 + _REPEATS)][2:])
