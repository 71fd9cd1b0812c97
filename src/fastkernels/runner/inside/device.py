"""What a worker does with its device: raw copies, waiting, contracts. Everything is bound when the worker
starts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from fastkernels.errors import MachineError
from fastkernels.measure import cold, unused
from fastkernels.measure.contracts import Contract, CudaDevice, Eager, Graph, Host
from fastkernels.measure.cuda import Driver
from fastkernels.runner.inside import flags
from fastkernels.runner.transfer.gpu_hold import Held
from fastkernels.runner.transfer.shared_memory import Attached


class WorkerDevice(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def driver(self) -> Driver | None: ...
    def copy(self, target: int, source: int, size: int) -> None: ...
    def fill(self, address: int, byte: int, size: int) -> None: ...
    def block_of(self, address: int) -> tuple[str, int]: ...
    def wait(self) -> None: ...
    def wait_all(self) -> None: ...
    def contracts(self, start: Callable[[], None] | None = None) -> dict[str, Contract]: ...
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

    def block_of(self, address: int) -> tuple[str, int]:
        """Its memory is one block without a handle."""
        return "", 0

    def wait(self) -> None:
        """Every call has ended when it returns."""

    wait_all = wait

    def contracts(self, start: Callable[[], None] | None = None) -> dict[str, Contract]:
        """`start`: of a rank, whose calls begin when it returns."""
        host = Host(start=start)
        return {"host": host, "collective": host}

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
        self._give_back, self._flags = unused.give_back, flags.of_gpu

    def copy(self, target: int, source: int, size: int) -> None:
        self.driver.copy(target, source, size, self._stream)

    def fill(self, address: int, byte: int, size: int) -> None:
        self.driver.fill(address, byte, size, self._stream)

    def block_of(self, address: int) -> tuple[str, int]:
        """The allocation that holds it, by which another process can map it, and where it begins."""
        try:
            base, _ = self.driver.allocation(address)
            return self.driver.export(base).hex(), base
        except MachineError as error:
            raise ValueError(
                f"a result lies in memory that no other process can map ({error}); allocate results by torch"
            ) from error

    def wait(self) -> None:
        self.driver.wait(self._stream)

    def wait_all(self) -> None:
        self.driver.wait_all()

    def contracts(self, start: Callable[[], None] | None = None) -> dict[str, Contract]:
        eager = Eager(self._device)
        graph, host = Graph(self._device), Host(idle=self.driver.wait_all, start=start)
        return {"host": host, "eager": eager, "collective": eager, "graph": graph}

    def held(self, words: Attached) -> Held:
        """What is enqueued here, between two words of the judge's."""
        return Held(words, self.driver, self._device.stream)

    def overhead_ns(self) -> int:
        return self._device.overhead_ns()

    def flags(self) -> dict[str, str]:
        """Settings of the whole process on this device, beside those of every process."""
        return self._flags(self.driver)

    def poison_free_memory(self, sizes: Iterable[int]) -> None:
        cold.poison_free_memory(sizes, self.name, self.fill)

    def release(self, beyond_bytes: int = 0) -> None:
        self._give_back(beyond_bytes)


def open_device(name: str) -> WorkerDevice:
    return Cuda() if name == "cuda" else Cpu()
