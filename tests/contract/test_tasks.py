"""What every task promises. Generated from registry/tasks: a new task is tested by being listed."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import typing
from types import ModuleType, NoneType, UnionType
from typing import Any

import pytest
import torch
from torch import nn

from fastkernels import kernels, registry
from fastkernels.layout import data_dir
from fastkernels.loader.overlay import Overlay
from fastkernels.registry.schema import TaskEntry

TASKS = list(registry.tasks())
VARIANTS = [(task, variant) for task in TASKS for variant in task.variants]
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
each_variant = pytest.mark.parametrize(
    ("task", "variant"), VARIANTS, ids=[f"{t.id}:{v}" for t, v in VARIANTS]
)
# Torch operators are registered in fastkernels.kernels only: an overlay imports task files twice.
REGISTRATION = {
    "library",
    "custom_op",
    "triton_op",
    "register_fake",
    "register_kernel",
    "register_autograd",
    "Library",
}


def module_of(task: TaskEntry) -> ModuleType:
    return importlib.import_module(f"fastkernels.baseline.{task.module}")


def class_of(task: TaskEntry, variant: str) -> type[nn.Module]:
    return getattr(module_of(task), task.variants[variant])


def tree_of(task: TaskEntry) -> ast.Module:
    return ast.parse((data_dir("baseline") / f"{task.id}.py").read_text())


def test_registry_and_files_agree():
    files = {f"{path.parent.name}/{path.stem}" for path in data_dir("baseline").glob("L?/*.py")}
    assert {task.id for task in TASKS} == {file for file in files if not file.endswith("/__init__")}


@each_variant
def test_classes_are_modules_of_this_file(task: TaskEntry, variant: str):
    cls = class_of(task, variant)
    assert issubclass(cls, nn.Module)
    assert cls.__module__ == module_of(task).__name__


@each_task
def test_every_class_is_a_variant_or_no_module(task: TaskEntry):
    module = module_of(task)
    own = {
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    }
    modules = {
        name
        for name in own
        if isinstance(vars(module)[name], type) and issubclass(vars(module)[name], nn.Module)
    }
    assert modules == set(task.variants.values())


@each_task
def test_docstring_has_summary_then_equation_then_what_it_mirrors(task: TaskEntry):
    text = module_of(task).__doc__ or ""
    summary, equation, *rest = text.split("\n\n")
    assert summary.rstrip().endswith(".")
    assert all(line.startswith("    ") for line in equation.splitlines())
    assert "=" in equation
    dtype_words = ("dtype", "exact", "float32", "Rounded", "rounded", "Accumulates")
    assert any(word in text for word in dtype_words), "the docstring says nothing about dtypes"
    _, found, mirrored = "\n\n".join(rest).partition("\nMirrors ")
    assert found
    for name in task.mirrors:
        assert name.rpartition(".")[2] in mirrored


@each_variant
def test_init_arguments_are_json_able(task: TaskEntry, variant: str):
    cls = class_of(task, variant)
    if cls.__init__ is nn.Module.__init__:
        return
    hints = typing.get_type_hints(cls.__init__)
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, name
        assert is_json_type(hints[name]), f"{name}: {hints[name]}"
        if parameter.default is not inspect.Parameter.empty:
            assert json.loads(json.dumps(parameter.default)) == parameter.default


def is_json_type(hint: Any) -> bool:
    if hint in (int, float, bool, str, NoneType, Any):
        return True
    origin = typing.get_origin(hint)
    return origin in (list, dict, UnionType, typing.Union) and all(map(is_json_type, typing.get_args(hint)))


@each_variant
def test_forward_takes_tensors_and_json_able_arguments(task: TaskEntry, variant: str):
    forward = class_of(task, variant).forward
    hints = typing.get_type_hints(forward)
    assert "return" in hints
    for name in list(inspect.signature(forward).parameters)[1:]:
        tensor = hints[name] in (torch.Tensor, torch.Tensor | None)
        assert tensor or is_json_type(hints[name]), f"{name}: {hints[name]}"
    # Variants may name what they write otherwise (conv_states, conv_state).
    assert not task.mutates or set(task.mutates) & set(hints)


@each_task
def test_imports_only_tasks_below_and_what_tasks_build_on(task: TaskEntry):
    ids = {other.id for other in TASKS}
    for node in ast.walk(tree_of(task)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            parts = (node.module or "").split(".")
            imported = "/".join(parts) if node.level == 2 else f"L{task.level}/{parts[0]}"
            assert imported in ids, (
                f"line {node.lineno}: a task imports other tasks by `from ..L1.name import Class`"
            )
            assert int(imported[1]) <= task.level, f"line {node.lineno}: imports from a level above"
            continue
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root = name.split(".")[0]
            ours = name.startswith(("fastkernels.nn.", "fastkernels.kernels"))
            assert ours or root == "torch" or root in sys.stdlib_module_names, (
                f"line {node.lineno}: imports {name}"
            )


@each_task
def test_registers_no_operator(task: TaskEntry):
    for node in ast.walk(tree_of(task)):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        assert name not in REGISTRATION, f"line {node.lineno}: {name}"


@each_task
def test_calls_the_kernels_that_the_registry_lists(task: TaskEntry):
    called = {
        node.func.attr
        for node in ast.walk(tree_of(task))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "kernels"
        and node.func.attr in kernels.registered
    }
    assert called == set(task.kernels)


@each_task
def test_a_second_import_beside_the_first_changes_nothing(task: TaskEntry):
    """Overlays import the same file under another name."""
    registered = dict(kernels.registered)
    again = Overlay.over_baseline().load(task.id)
    assert again.__file__ == module_of(task).__file__
    assert kernels.registered == registered
    for name in task.variants.values():
        assert getattr(again, name) is not getattr(module_of(task), name)
