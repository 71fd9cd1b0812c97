"""The kernels that one call launches, by torch's profiler: a worker's word, for labels and no verdict."""

from __future__ import annotations

from typing import Any

import torch

from fastkernels.loader.materialize import Call


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
