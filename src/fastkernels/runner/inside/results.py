"""Results on their way from a call to the judge: raw copies of plain tensors, and a description of
everything.

What is copied is the memory as it lies there (from the first to the last element that a strided result
reaches); the judge lays shape and strides over it. What cannot be copied, because it is no plain tensor on
the right device or larger than the baseline's result, stays poisoned and is told apart by its description.

The methods used are those of torch's C type, which cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fastkernels.judge.metadata import Description, describe, unlike_memory
from fastkernels.records import Record
from fastkernels.runner.transfer.shared_memory import Attached, span_elements

if TYPE_CHECKING:
    from fastkernels.runner.inside.device import WorkerDevice

address = torch._C.TensorBase.data_ptr
_stride, _numel, _itemsize = (
    torch._C.TensorBase.stride,
    torch._C.TensorBase.numel,
    torch._C.TensorBase.element_size,
)
_size = torch._C.TensorBase.size
_is_cuda = torch._C.TensorBase.is_cuda.__get__  # type: ignore[attr-defined]
_is_cpu = torch._C.TensorBase.is_cpu.__get__  # type: ignore[attr-defined]
_PLAIN = (Tensor, Parameter)
Told = dict[str, dict[str, int]]  # address and bytes by name


class Result(Record):
    """`span_bytes`: from the first to the last element that the tensor reaches."""

    description: Description
    bytes: int = 0
    span_bytes: int = 0


class Results:
    """Copies results into a link's part of the outbox."""

    def __init__(self, device: WorkerDevice, outbox: Attached, link: int) -> None:
        self._device, self._outbox = device, outbox
        self._here = _here(device)
        self._targets = {
            name: (outbox.address(name, link), slot.capacity) for name, slot in outbox.slots.items()
        }

    def keep(self, outputs: Mapping[str, Any]) -> None:
        """Copy them."""
        for name, value in outputs.items():
            target, capacity = self._targets.get(name, (0, -1))
            if self._here(value):
                size = span_bytes(value)
                if 0 < size <= capacity:
                    self._device.copy(target, address(value), size)

    @staticmethod
    def describe(outputs: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> dict[str, Result]:
        """Every result as data. A mutable argument is no alias of itself."""
        found = {}
        for name, value in outputs.items():
            others = {other: tensor for other, tensor in inputs.items() if other != name}
            description = describe(value, others)
            plain = _plain(value)
            found[name] = Result(
                description=description,
                bytes=_numel(value) * _itemsize(value) if plain else 0,
                span_bytes=span_bytes(value) if plain else 0,
            )
        return found


class Whereabouts:
    """Says where results lie, for a judge that reads them there (transfer/gpu_arguments.py)."""

    def __init__(self, device: WorkerDevice) -> None:
        self._here = _here(device)
        self.places: Told = {}

    def keep(self, outputs: Mapping[str, Any]) -> None:
        """Note where they lie."""
        self.places = {name: place(value) for name, value in outputs.items() if self._here(value)}


def place(value: Tensor) -> dict[str, int]:
    """Where a tensor lies in memory."""
    return {"address": address(value), "bytes": span_bytes(value)}


def _here(device: WorkerDevice) -> Callable[[Any], bool]:
    """Whether something is a plain tensor on the device."""
    on_device = _is_cuda if device.name == "cuda" else _is_cpu
    return lambda value: _plain(value) and on_device(value)


def span_bytes(value: Tensor) -> int:
    """Bytes from the first to the last element."""
    return span_elements(_size(value), _stride(value)) * _itemsize(value)


def _plain(value: Any) -> bool:
    return type(value) in _PLAIN and unlike_memory(value) is None
