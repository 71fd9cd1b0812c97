"""Distinct calls of tasks in a running model: shapes, dtypes and strides of its arguments; how often."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fastkernels import registry
from fastkernels.loader.overlay import Overlay
from fastkernels.nn.context import step
from fastkernels.nn.fusion import apart


class Calls:
    """Counts while `attached`; equal calls of a model's repeated layers are one."""

    def __init__(self, model: nn.Module, overlay: Overlay) -> None:
        self._model = model
        self._counts: Counter[str] = Counter()
        self._sites: dict[nn.Module, dict[str, str]] = {}
        self._signatures: dict[type, inspect.Signature] = {}
        for name, module in model.named_modules():
            task = overlay.task(type(module))
            if task is None:
                continue
            variants = {cls: variant for variant, cls in registry.task(task).variants.items()}
            if type(module).__name__ in variants:  # others are parts of a task, not its interface
                variant = variants[type(module).__name__]
                where = re.sub(r"\b\d+\b", "*", name)
                self._sites[module] = {"task": task, "variant": variant, "module": where}
                self._signatures[type(module)] = inspect.signature(type(module).forward)

    @contextmanager
    def attached(self) -> Iterator[None]:
        handles = [module.register_forward_pre_hook(self._note, with_kwargs=True) for module in self._sites]
        try:
            with apart(self._model):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def lines(self) -> list[dict[str, Any]]:
        """In order of first appearance."""
        return [{**json.loads(key), "calls": count} for key, count in self._counts.items()]

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = self._signatures[type(module)].bind(module, *args, **kwargs).arguments
        described = {name: _described(value) for name, value in [*given.items()][1:]}
        call = {**self._sites[module], "phase": _phase(), "arguments": described}
        self._counts[json.dumps(call)] += 1


def _phase() -> str:
    """Of the step in flight, as cases have it."""
    current = step()
    if current.num_decodes == 0:
        return "prefill"
    return "decode" if current.num_decodes == len(current.seq_lens_B) else "mixed"


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": [*value.shape], "dtype": dtype, "stride": [*value.stride()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [_described(item) for item in value] if isinstance(value, list | tuple) else type(value).__name__
