"""A task's parameters have the production module's names, because callers there pass them by name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
from torch import nn

from fastkernels import registry
from fastkernels.loader.overlay import Overlay
from fastkernels.registry.schema import TaskEntry

TASKS = registry.tasks()
LIBRARIES = ("torch.", "transformers.", "diffusers.", "fla.")
INSPECTED = [
    (entry, variant)
    for entry in TASKS
    for variant, interface in entry.interface.items()
    if interface.of.startswith(LIBRARIES)
]


def names(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def ours(entry: TaskEntry, variant: str) -> tuple[list[str], list[str]]:
    cls = getattr(Overlay.over_baseline().load(entry.id), entry.variants[variant])
    # Inherited ones too, but that of nn.Module, which takes anything.
    return [] if cls.__init__ is nn.Module.__init__ else names(cls.__init__), names(cls.forward)


def found(path: str) -> Any:
    """The object of a dotted path; ImportError where its package is not installed."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            at: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            at = getattr(at, part)
        return at
    raise ImportError(path)


@pytest.mark.parametrize("entry", TASKS, ids=lambda entry: entry.id)
def test_every_parameter_is_productions_or_said_to_be_our_own(entry: TaskEntry) -> None:
    assert set(entry.interface) == set(entry.variants), "each variant has its `interface` in the registry"
    for variant, interface in entry.interface.items():
        init, forward = ours(entry, variant)
        own = set(interface.own)
        assert [name for name in init if name not in own] == list(interface.init), variant
        assert [name for name in forward if name not in own] == list(interface.forward), variant
        assert own <= {*init, *forward}, variant
        assert not own & {*interface.init, *interface.forward}, variant
        assert interface.of in entry.mirrors, variant


@pytest.mark.parametrize("entry", TASKS, ids=lambda entry: entry.id)
def test_what_the_registry_draws_are_parameters(entry: TaskEntry) -> None:
    """A name that no variant has would leave its argument drawn as any other, in silence."""
    forward = {name for variant in entry.variants for name in ours(entry, variant)[1]}
    assert set(entry.draws) <= forward
    assert set(entry.mutates) <= forward


@pytest.mark.parametrize("entry", TASKS, ids=lambda entry: entry.id)
def test_no_parameter_tells_a_shape(entry: TaskEntry) -> None:
    """`x_TD` is a local name: production passes `x`."""
    for variant in entry.variants:
        for name in [one for side in ours(entry, variant) for one in side]:
            suffix = name.rpartition("_")[2]
            assert not ("_" in name and suffix.isupper() and suffix.isalnum()), name


@pytest.mark.filterwarnings("ignore")  # what libraries say as they are imported
@pytest.mark.parametrize(("entry", "variant"), INSPECTED, ids=lambda part: getattr(part, "id", part))
def test_the_names_are_those_of_the_installed_library(entry: TaskEntry, variant: str) -> None:
    """Production has what is said to be its own, and lacks what is said to be ours."""
    interface = entry.interface[variant]
    try:
        production = found(interface.of)
    except ImportError:
        pytest.skip(f"{interface.of} is not installed here")
    call = made = production
    if inspect.isclass(production):
        call = getattr(production, "forward", production.__call__)
        made = production.__init__
    init, forward = ours(entry, variant)
    if inspect.isbuiltin(call):
        pytest.skip(f"{interface.of} is compiled and does not say its parameters")
    assert set(init) & set(names(made)) == set(interface.init)
    assert set(forward) & set(names(call)) == set(interface.forward)
