"""The SM clock, and what is said where it cannot be read."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fastkernels.measure.clocks import SmClock


class NVMLError(Exception):
    pass


def nvml(clock: object) -> ModuleType:
    """A driver in which the GPU `GPU-one` has this clock."""

    def handle(uuid: str) -> str:
        if uuid != "GPU-one":
            raise NVMLError(f"no {uuid}")
        return uuid

    module = ModuleType("pynvml")
    found = {"NVMLError": NVMLError, "NVML_CLOCK_SM": 1, "nvmlInit": lambda: None}
    vars(module).update(found, nvmlDeviceGetHandleByUUID=handle, nvmlDeviceGetClockInfo=clock)
    return module


@pytest.fixture(autouse=True)
def first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="one"))


def test_the_first_visible_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(lambda handle, which: 1980))
    clock = SmClock("cuda")
    assert (clock.sample(), clock.problem) == (1980, "")


def test_a_cpu_has_none() -> None:
    assert (SmClock("cpu").sample(), SmClock("cpu").problem) == (None, "")


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(handle: str, which: int) -> int:
        raise NVMLError("Not Supported")

    for module, why in ((None, "pynvml"), (nvml(refuses), "NVML says Not Supported")):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        clock = SmClock("cuda")
        assert clock.sample() is None
        assert why in clock.problem
