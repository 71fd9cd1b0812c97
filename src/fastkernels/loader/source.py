"""What a task file says, read from its syntax tree: nothing is imported and torch is not needed."""

from __future__ import annotations

import ast
import errno
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from fastkernels.loader import files

BASELINE_PACKAGE = "fastkernels.baseline"
LEVELS = ("L1", "L2", "L3", "L4")
# Readers of a tree recurse, by up to five calls for a level. PyTorch's and Triton's own code has up to 94.
MAX_DEPTH = 150


class Unreadable(SyntaxError):
    """No file, whatever its name says: a folder, a link that leads nowhere, a pipe, or without permission."""


class Excessive(SyntaxError):
    """Too long, or nested too deep, to be looked over; Python itself might run it."""


def parse(file: Path) -> ast.Module:
    """The file's tree; SyntaxError names the file (also for bytes that are not UTF-8, and for NUL), Excessive
    where it is too much, Unreadable where there is nothing to parse."""
    try:
        return _parse(file, file.stat().st_mtime_ns, file.stat().st_size)
    except OSError as error:
        kind = Excessive if error.errno == errno.EFBIG else Unreadable
        raise kind(f"cannot be read: {error.strerror}", (str(file), 1, 1, "")) from error


@lru_cache(maxsize=256)
def _parse(file: Path, modified: int, size: int) -> ast.Module:
    try:
        tree = ast.parse(files.read(file), filename=str(file))
    except ValueError as error:
        raise SyntaxError(str(error), (str(file), 1, 1, "")) from error
    except (RecursionError, MemoryError) as error:  # the parser's stack, in one version or the other
        raise Excessive("nested too deep for Python's parser", (str(file), 1, 1, "")) from error
    if _deeper(tree, MAX_DEPTH):
        raise Excessive(f"nested more than {MAX_DEPTH} levels deep", (str(file), 1, 1, ""))
    return tree


def _deeper(tree: ast.Module, most: int) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(most):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def dotted(expression: ast.expr) -> str | None:
    """`torch.cuda.Event` for a chain of attributes on a name."""
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute) and (prefix := dotted(expression.value)):
        return f"{prefix}.{expression.attr}"
    return None


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> what it stands for: F -> torch.nn.functional, RMSNorm -> ..L1.rms_norm.RMSNorm."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            separator = "" if module.endswith(".") else "."
            names |= {alias.asname or alias.name: f"{module}{separator}{alias.name}" for alias in node.names}
    return names


def resolved(expression: ast.expr, names: dict[str, str]) -> str | None:
    """`torch.cuda.Event` for `cuda.Event` after `from torch import cuda`."""
    chain = dotted(expression)
    if chain is None:
        return None
    root, dot, rest = chain.partition(".")
    return f"{names.get(root, root)}{dot}{rest}"


def top_level_names(tree: ast.Module) -> dict[str, ast.stmt]:
    """Names that the module binds (classes, functions, assignments, imports) and the binding statements."""
    bound: dict[str, ast.stmt] = {}
    for statement in _statements(tree.body):
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            bound[statement.name] = statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                bound[alias.asname or alias.name.partition(".")[0]] = statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                bound |= {node.id: statement for node in ast.walk(target) if isinstance(node, ast.Name)}
    return bound


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at module level, those inside `if`, `try` and `with` included."""
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(statement, field, []))


def absolute_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and top-level name of each import that is not relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, (node.module or "").partition(".")[0]


def relative_only(name: str, layer: Path) -> str | None:
    """What to write in place of an absolute import of a file of `layer`; None where it has none of this
    top-level name."""
    if name in LEVELS:
        return f"Only relative imports reach files of a candidate: from ..{name} import ..."
    for level in LEVELS:
        if (layer / level / f"{name}.py").is_file() or (layer / level / name).is_dir():
            beside = f"from . import {name}"
            return (
                f"Only relative imports reach {level}/{name}: {beside}, or from ..{level} in another folder"
            )
    return None


def module_imports(tree: ast.Module, module: str) -> set[str]:
    """Every module that `module` (`L2.gated_mlp`) may import from its own tree, as `L1.rms_norm`.

    Modules of the baseline package keep their full name (`fastkernels.baseline.L1.rms_norm`).
    `from ..L1 import glu` may mean the module L1.glu or a name in L1, so both are in the set.
    """
    package = module.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith(BASELINE_PACKAGE)}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
            elif (node.module or "").startswith(BASELINE_PACKAGE):
                base = []
            else:
                continue
            base = ".".join([*base, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" if base else alias.name for alias in node.names)}
    return found - {""}
