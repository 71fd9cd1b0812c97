"""What source files say about themselves: contracts, signatures, implementations, from their syntax trees."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from fastkernels.layout import data_dir
from fastkernels.registry.schema import TaskEntry

_KERNELS = Path(__file__).resolve().parent.parent / "kernels"


@dataclass(frozen=True)
class Implementation:
    """One way to compute a kernel, as the file of the kernel declares it."""

    kernel: str
    name: str
    devices: tuple[str, ...] = ("cuda",)
    requires: tuple[str, ...] = ()
    extra: str | None = None


def task_file(entry: TaskEntry) -> Path:
    return data_dir("baseline") / f"{entry.id}.py"


def contract(entry: TaskEntry) -> str:
    """The docstring of the baseline task file: mathematics, shapes, dtype rules, who mirrors it."""
    return ast.get_docstring(_tree(task_file(entry))) or ""


def signatures(entry: TaskEntry) -> dict[str, list[str]]:
    """For each variant the heads of its class's `__init__` and `forward`, as the file writes them."""
    tree = _tree(task_file(entry))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return {variant: _methods(classes[name]) for variant, name in entry.variants.items() if name in classes}


def kernels() -> list[str]:
    """Every kernel that fastkernels.kernels declares."""
    return list(_implementations())


def implementations(kernel: str) -> list[Implementation]:
    """The declared implementations of a kernel, best guess first, then `reference`; [] for an unknown one."""
    return _implementations().get(kernel, [])


@cache  # of every file, as there are more than are kept by default
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _methods(node: ast.ClassDef) -> list[str]:
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    heads = []
    for name in ("__init__", "forward"):
        if method := methods.get(name):
            arguments = ast.unparse(method.args).removeprefix("self").removeprefix(", ")
            returns = f" -> {ast.unparse(method.returns)}" if method.returns and name == "forward" else ""
            heads.append(f"{node.name if name == '__init__' else 'forward'}({arguments}){returns}")
    return heads if len(heads) == 2 else [f"{node.name}()", *heads]


@lru_cache
def _implementations() -> dict[str, list[Implementation]]:
    """From `Kernel("name", ..., implementations=(Implementation(...), ...))` in fastkernels.kernels."""
    found = {}
    for path in sorted([*_KERNELS.glob("*.py"), *_KERNELS.glob("*/__init__.py")]):
        tree = _tree(path)
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _calls(call, "Kernel"):
                kernel = ast.literal_eval(call.args[0])
                declared = next(
                    (k.value for k in call.keywords if k.arg == "implementations"), ast.Tuple(elts=[])
                )
                if isinstance(declared, ast.Name):
                    declared = constants[declared.id]
                inner = [node for node in ast.walk(declared) if isinstance(node, ast.Call)]
                made = [_implementation(kernel, node) for node in inner if _calls(node, "Implementation")]
                found[kernel] = [*made, Implementation(kernel, "reference", ("cpu", "cuda"))]
    return found


def _implementation(kernel: str, call: ast.Call) -> Implementation:
    options = {
        k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in ("devices", "requires", "extra")
    }
    return Implementation(kernel, ast.literal_eval(call.args[0]), **options)


def _calls(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name
