"""Mistakes inside the module: a constant skipped or wrong, a mask one off or missing, a part left out.

    attributes    floats: an epsilon as 0, others times WRONG_SCALE; `window` one longer and one shorter;
                  `causal` left out
    buffers       tables that the module computes for itself, read one row off
    parts         an argument of a submodule as zeros (the residual of a norm); the part itself left out,
                  where its result looks like one of its arguments

Of parts that repeat (`layers.*`) the last one stands for all.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels.audit.mutants.calls import Call, task_of
from fastkernels.audit.mutants.outputs import WRONG_SCALE
from fastkernels.audit.subject import Change, NotApplicable, Subject
from fastkernels.loader.materialize import parameters
from fastkernels.nn.fusion import apart

Around = Callable[[nn.Module], contextlib.AbstractContextManager[object]]


def mutants(subject: Subject, calls: Mapping[str, Call]) -> list[Change | NotApplicable]:
    parts = _parts(subject.module)
    return [
        *(change for name, part in parts for change in _attributes(subject, name, part)),
        *_buffers(subject.module),
        *(change for name, _ in parts if name for change in _calls(subject, name, calls.get(name))),
    ]


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every part by name, the last of those that repeat."""
    found = {_alike_names(name): (name, part) for name, part in module.named_modules()}
    return [*found.values()]


def _alike_names(name: str) -> str:
    """One name for parts that repeat: `layers.1` and `layers.2`. `norm1` and `norm2` are two parts."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


# ---------------------------------------------------------------- attributes and buffers


def _attributes(subject: Subject, part: str, module: nn.Module) -> Iterator[Change | NotApplicable]:
    task = task_of(subject, part)
    for name, value in vars(module).items():
        label = f"{part}.{name}".removeprefix(".")
        if name == "sliding_window" and value is None:
            yield NotApplicable("mutant", f"{label} off by one", "no window")
            continue
        if name == "causal" and not value:
            yield NotApplicable("mutant", f"{label} left out", "every query sees every key")
            continue
        for what, wrong in _wrong_values(name, value):
            around = _with_attribute(part, name, wrong)
            yield Change("mutant", f"{label} {what}", around=around, part_of=task, within=part)


def _wrong_values(name: str, value: Any) -> list[tuple[str, Any]]:
    if name == "sliding_window":
        return [("one longer", value + 1), ("one shorter", value - 1)]
    if name == "causal":
        return [("left out", False)]
    if not isinstance(value, float):
        return []
    return [("skipped", 0.0)] if "eps" in name else [(f"wrong by {WRONG_SCALE:g}", value * WRONG_SCALE)]


def _with_attribute(part: str, name: str, value: Any) -> Around:
    @contextlib.contextmanager
    def changed(module: nn.Module) -> Iterator[None]:
        owner = module.get_submodule(part)
        right = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, right)

    return changed


def _buffers(module: nn.Module) -> Iterator[Change]:
    own = {id(value) for value in parameters(module).values()}
    tables = {
        _alike_names(name): (name, value)
        for name, value in module.named_buffers()
        if id(value) not in own and value.ndim > 1
    }
    for name, _ in tables.values():
        part, _, attribute = name.rpartition(".")
        yield Change("mutant", f"{name} one row off", around=_rolled(part, attribute), within=part)


def _rolled(part: str, attribute: str) -> Around:
    def changed(module: nn.Module) -> contextlib.AbstractContextManager[object]:
        table = getattr(module.get_submodule(part), attribute)
        return _with_attribute(part, attribute, table.roll(1, 0))(module)

    return changed


# ---------------------------------------------------------------- parts


def _calls(subject: Subject, part: str, call: Call | None) -> list[Change | NotApplicable]:
    """What can go wrong in the calls of one part, as they were seen in a right run."""
    if call is None:
        return [NotApplicable("mutant", f"{part} left out", "this case never calls it")]
    names = list(inspect.signature(subject.module.get_submodule(part).forward).parameters)
    caller = task_of(subject, part.rpartition(".")[0])
    found: list[Change | NotApplicable] = [
        Change(
            "mutant",
            f"{part}.{names[i]} skipped",
            around=_without_argument(part, i),
            part_of=caller,
            within=part,
        )
        for i, value in enumerate(call.arguments)
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    if _in_place_of(call.arguments, call.result) is None:
        why = "its result looks like none of its arguments"
        return [*found, NotApplicable("mutant", f"{part} left out", why)]
    return [*found, Change("mutant", f"{part} left out", around=_left_out(part), part_of=caller, within=part)]


def _without_argument(part: str, index: int) -> Around:
    def changed(module: nn.Module) -> contextlib.AbstractContextManager[object]:
        def hook(owner: nn.Module, arguments: Any) -> Any:
            return (*arguments[:index], torch.zeros_like(arguments[index]), *arguments[index + 1 :])

        return _hooked(module, module.get_submodule(part).register_forward_pre_hook(hook))

    return changed


def _left_out(part: str) -> Around:
    def changed(module: nn.Module) -> contextlib.AbstractContextManager[object]:
        def hook(owner: nn.Module, arguments: Any, result: Any) -> Any:
            return _in_place_of(arguments, result)

        return _hooked(module, module.get_submodule(part).register_forward_hook(hook))

    return changed


def _in_place_of(arguments: Sequence[Any], result: Any) -> Any:
    """Arguments that look like the result, or like the members of a tuple in their order; None without."""
    wanted = result if isinstance(result, tuple) else (result,)
    left = [value for value in arguments if isinstance(value, Tensor)]
    found = []
    for member in wanted:
        alike = [i for i, value in enumerate(left) if _alike(value, member)]
        if not alike:
            return None
        value = left.pop(alike[0])
        # As a part that works would return it: what follows may ask for views.
        found.append(value.contiguous() if member.is_contiguous() else value)
    return tuple(found) if isinstance(result, tuple) else found[0]


def _alike(one: Tensor, other: Any) -> bool:
    return isinstance(other, Tensor) and (one.shape, one.dtype) == (other.shape, other.dtype)


@contextlib.contextmanager
def _hooked(module: nn.Module, handle: Any) -> Iterator[None]:
    try:
        with apart(module):
            yield
    finally:
        handle.remove()
