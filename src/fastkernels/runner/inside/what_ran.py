"""What a call really ran, in the worker: the implementation of each kernel, and the kernels that are
launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastkernels.kernels.base import Kernel
from fastkernels.loader.materialize import Call


@contextmanager
def recorded() -> Iterator[dict[str, str]]:
    """Fills the dictionary it yields, kernel -> implementation, during the body. For an untimed call."""
    seen: dict[str, str] = {}
    original = Kernel.__call__

    def noting(self: Kernel, *args: Any, impl: str | None = None) -> Any:
        seen[self.name] = impl or self._forced_name() or self.choose(args)
        return original(self, *args, impl=impl)

    Kernel.__call__ = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Kernel.__call__ = original  # type: ignore[method-assign]


def launched(call: Call) -> list[dict[str, Any]]:
    """[{"name": ..., "ns": ...}] in order; empty on a CPU, where there is nothing to tell apart."""
    if not torch.cuda.is_available():
        return []
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode(), call.ambient():
        call.run()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            call.run()
            torch.cuda.synchronize()
    return [
        {"name": event.name, "ns": round(1e3 * event.time_range.elapsed_us())}
        for event in found.events() or []
        if str(event.device_type).endswith("CUDA")
    ]
