"""The SM clock beside every sample, read by the judge through NVML. Clocks are read, never set."""

from __future__ import annotations

from typing import Any


class SmClock:
    """`sample()` is the current SM clock of the first GPU in MHz; None on a CPU, and where `problem` says why
    it cannot be read."""

    def __init__(self, device: str) -> None:
        self._read: Any = None
        self.problem = ""
        if device == "cuda":
            try:
                self._read = _reader()
            except (ImportError, RuntimeError) as error:
                self.problem = f"SM clocks are not read, and no sample is dropped for its clock: {error}"

    def sample(self) -> int | None:
        return self._read() if self._read else None


def _reader() -> Any:
    """ImportError without the package nvidia-ml-py, RuntimeError where the driver does not answer."""
    import pynvml  # pyright: ignore[reportMissingImports]
    import torch

    try:
        pynvml.nvmlInit()
        # NVML counts all GPUs of the machine, torch only the visible ones: the UUID means the same to both.
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML says {error}") from error
    return lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
