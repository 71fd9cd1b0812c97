"""The SM clock beside every sample, read by the judge through NVML. Clocks are read, never set."""

from __future__ import annotations

import contextlib
from typing import Any


class SmClock:
    """`sample()` is the current SM clock in MHz, or None: no GPU, or no NVML (package nvidia-ml-py)."""

    def __init__(self, device: str) -> None:
        self._read: Any = None
        if device == "cuda":
            with contextlib.suppress(ImportError):
                self._read = _reader()

    def sample(self) -> int | None:
        return self._read() if self._read else None


def _reader() -> Any:
    import pynvml  # pyright: ignore[reportMissingImports]
    import torch

    try:
        pynvml.nvmlInit()
        # NVML counts all GPUs of the machine, torch only the visible ones: the UUID means the same to both.
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError:
        return None
    return lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
