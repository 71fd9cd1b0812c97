"""What a worker does with its device: raw copies, waiting, contracts. Everything is bound when the worker
starts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from fastkernels.measure import cold, unused
from fastkernels.measure.contracts import Contract, CudaDevice, Eager, Graph, Host
from fastkernels.measure.cuda import Driver
from fastkernels.measure.recorded import Recorded, Repeated, Replayed, Work
from fastkernels.runner.gate import Gate
from fastkernels.runner.hold import Held
from fastkernels.runner.results import address as address_of
from fastkernels.runner.results import members, span_bytes
from fastkernels.runner.shared import Attached


class WorkerDevice(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def driver(self) -> Driver | None: ...
    def copy(self, target: int, source: int, size: int) -> None: ...
    def fill(self, address: int, byte: int, size: int) -> None: ...
    def recorded(self, work: Work) -> Recorded: ...
    def wait(self) -> None: ...
    def wait_all(self) -> None: ...
    def contracts(self) -> dict[str, Contract]: ...
    def collective(self, start: Callable[[], None], align: Callable[[], None] | None) -> Contract: ...
    def overhead_ns(self) -> int: ...
    def flags(self) -> dict[str, str]: ...
    def poison_free_memory(self, sizes: Iterable[int]) -> None: ...
    def release(self, beyond_bytes: int = 0) -> None: ...


class Cpu:
    name = "cpu"
    driver = None

    def __init__(self) -> None:
        self._move, self._set = ctypes.memmove, ctypes.memset

    def copy(self, target: int, source: int, size: int) -> None:
        self._move(target, source, size)

    def fill(self, address: int, byte: int, size: int) -> None:
        self._set(address, byte, size)

    def recorded(self, work: Work) -> Recorded:
        return Repeated(work)

    def wait(self) -> None:
        """Every call has ended when it returns."""

    wait_all = wait

    def contracts(self) -> dict[str, Contract]:
        return {"host": Host()}

    def collective(self, start: Callable[[], None], align: Callable[[], None] | None) -> Contract:
        """Of a rank whose call begins when `start` returns; `align` is for devices that lag behind."""
        return Host(start=start)

    def overhead_ns(self) -> int:
        return 0

    def flags(self) -> dict[str, str]:
        return {}

    def poison_free_memory(self, sizes: Iterable[int]) -> None:
        cold.poison_free_memory(sizes, self.name, self.fill)

    def release(self, beyond_bytes: int = 0) -> None:
        """Memory goes back by itself."""


class Cuda:
    name = "cuda"

    def __init__(self) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the primary context current in this thread
        self.driver = Driver()
        self._device = CudaDevice(self.driver)
        self._stream = self._device.stream
        self._give_back = unused.give_back

    def copy(self, target: int, source: int, size: int) -> None:
        self.driver.copy(target, source, size, self._stream)

    def fill(self, address: int, byte: int, size: int) -> None:
        self.driver.fill(address, byte, size, self._stream)

    def recorded(self, work: Work) -> Recorded:
        """`work` enqueues copies and fills of this device, nothing else."""

        def enqueue(stream: int) -> None:
            self._stream = stream
            try:
                work()
            finally:
                self._stream = self._device.stream

        return Replayed(self.driver, self.driver.recorded(enqueue), self._device.stream)

    def wait(self) -> None:
        self.driver.wait(self._stream)

    def wait_all(self) -> None:
        self.driver.wait_all()

    def contracts(self) -> dict[str, Contract]:
        host = Host(idle=self.driver.wait_all)
        graph = Graph(self._device, self._poison, self.recorded)
        return {"host": host, "eager": Eager(self._device), "graph": graph}

    def collective(self, start: Callable[[], None], align: Callable[[], None] | None) -> Contract:
        return Eager(self._device, start, align)

    def held(self, gate: Gate, words: Attached) -> Held:
        """What is enqueued here, between two words of the judge's."""
        return Held(gate, words, self.driver, self._device.stream)

    def overhead_ns(self) -> int:
        return self._device.overhead_ns()

    def flags(self) -> dict[str, str]:
        """Settings of the whole process on this device, beside those of flags.py."""
        return {"persisting L2 bytes": str(self.driver.persisting_l2_bytes())}

    def poison_free_memory(self, sizes: Iterable[int]) -> None:
        cold.poison_free_memory(sizes, self.name, self.fill)

    def release(self, beyond_bytes: int = 0) -> None:
        self._give_back(beyond_bytes)

    def _poison(self, result: Any) -> None:
        for member in members(result):
            self.fill(address_of(member), cold.POISON, span_bytes(member))


def open_device(name: str) -> WorkerDevice:
    return Cuda() if name == "cuda" else Cpu()
