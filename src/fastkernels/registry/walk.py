"""Run a model on the meta device and note every call of a task: its init arguments and its inputs.

The model's class says what a step calls (nn/examples.py). Nothing is computed and no memory is used, so the
real configuration is walked, with the shapes of serving.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.creation import creating
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.context import use_step
from fastkernels.nn.routing import routers
from fastkernels.records import Batch
from fastkernels.registry.schema import TaskEntry

Load = Callable[[str], ModuleType]  # "L1.rms_norm" -> the module
signature_of = lru_cache(inspect.signature)  # of a hundred functions, at each of 70,000 calls of modules


@dataclass(frozen=True)
class TaskCall:
    """One forward of one module; tensors among the arguments are on the meta device."""

    task: TaskEntry
    variant: str
    module: nn.Module
    init: dict[str, Any]
    arguments: dict[str, Any]


class Walk:
    """A model on the meta device that notes the calls of its task modules."""

    def __init__(
        self, load: Load, tasks: list[TaskEntry], model_task: TaskEntry, config: dict[str, Any], dtype: str
    ):
        self._classes = {
            getattr(load(entry.module), name): (entry, variant)
            for entry in tasks
            for variant, name in entry.variants.items()
        }
        self._dtype = getattr(torch, dtype)
        self._calls: list[TaskCall] = []
        self._kinds: dict[int, Hashable] = {}  # by id(module)
        name = model_task.variants["default"]
        with _init_arguments(list(self._classes)) as self._inits, creating("meta", self._dtype):
            self.model: Any = getattr(load(model_task.module), name)(config=config)
        for module in self.model.modules():
            if type(module) in self._classes:
                module.register_forward_pre_hook(self._note, with_kwargs=True)

    def step(self, run: str, batch: Batch) -> list[TaskCall]:
        """The calls of one step that begins with the model's method `run`, in order."""
        self._calls = []
        with creating("meta", self._dtype), use_step(None):
            examples, returned = self.model.examples(run, batch), None
            while True:
                try:
                    name, inputs = examples.send(returned)
                except StopIteration:
                    return self._calls
                # Hooks see a call of the model, and none of its `forward`.
                called = self.model if name == "forward" else getattr(self.model, name)
                returned = called(*inputs)

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = signature_of(type(module).forward).bind(module, *args, **kwargs)
        del bound.arguments["self"]
        task, variant = self._classes[type(module)]
        self._calls.append(TaskCall(task, variant, module, self._inits[id(module)], dict(bound.arguments)))

    def looks(self, call: TaskCall) -> Hashable:
        """All of a call that its case depends on: of a step, calls of equal looks make the same case. Most
        layers of a model are called alike."""
        module, storages = call.module, dict[int, int]()
        if id(module) not in self._kinds:
            dtypes = tuple(value.dtype for value in module.parameters())
            parts = len(cache_owners(module)), len(routers(module))
            self._kinds[id(module)] = type(module), repr(call.init), dtypes, *parts
        arguments = tuple((name, _looks(value, storages)) for name, value in call.arguments.items())
        return self._kinds[id(module)], arguments


def _looks(value: Any, storages: dict[int, int]) -> Hashable:
    """`storages`: of the call's tensors so far, numbered, because an input may be a part of another."""
    if not isinstance(value, Tensor):
        return repr(value)
    storage = value.untyped_storage()
    number = storages.setdefault(storage._cdata, len(storages))
    return value.dtype, value.shape, value.stride(), value.storage_offset(), storage.nbytes(), number


@contextmanager
def _init_arguments(classes: list[type[nn.Module]]) -> Iterator[dict[int, dict[str, Any]]]:
    """Within the body, note the arguments that instances of these classes are made with, by id(instance)."""
    noted: dict[int, dict[str, Any]] = {}
    own = {cls: vars(cls).get("__init__") for cls in classes}
    wrapped = {cls: _noting(cls, noted) for cls in classes}
    for cls, init in wrapped.items():
        cls.__init__ = init
    try:
        yield noted
    finally:
        for cls, init in own.items():
            if init is None:
                del cls.__init__
            else:
                cls.__init__ = init


def _noting(cls: type[nn.Module], noted: dict[int, dict[str, Any]]) -> Callable[..., None]:
    init = cls.__init__
    signature = inspect.signature(init)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    # A class without parameters inherits nn.Module's `(self, *args, **kwargs)`.
    named = [name for name, parameter in signature.parameters.items() if parameter.kind not in variadic][1:]

    def __init__(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            noted[id(self)] = {name: bound.arguments[name] for name in named}
        init(self, *args, **kwargs)

    return __init__
