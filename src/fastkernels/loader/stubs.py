"""Starting points for candidates: the baseline's classes, signatures and contract over a body that passes.

L1: the class extends the baseline's and forward calls it; that call is what to replace. From L2 on a stub is
the baseline's own wiring: a class that extends `fastkernels.baseline.L2...` would carry the baseline's L1
with it and cut off L1 candidates, while a copy with relative imports keeps all beneath it replaceable.
"""

from __future__ import annotations

import ast
from pathlib import Path

from fastkernels.errors import UsageError
from fastkernels.layout import data_dir
from fastkernels.loader import source
from fastkernels.registry.schema import TaskEntry

_WIDTH = 110
_EXTEND = """Candidate for {id}: replace the calls of super().forward by your own computation.
"""
_REWIRE = """Candidate for {id}: this is the baseline's wiring, to be replaced. Keep the relative imports of
what you still use, so that candidates for those tasks stay in place.
"""
_NEXT = "`fk check` looks this file over; `fk kernels --target {name}` judges it."


def stub(entry: TaskEntry) -> str:
    """Source of a candidate file for the entry's variants; `fk check` has nothing to say about it."""
    text = (data_dir("baseline") / f"{entry.id}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    note = (_EXTEND if entry.level == 1 else _REWIRE) + _NEXT
    contract = (ast.get_source_segment(text, tree.body[0]) or "").removesuffix('"""').rstrip()
    docstring = f'{contract}\n\n{note.format(id=entry.id, name=entry.name)}\n"""\n'
    if entry.level == 1:
        return f"{docstring}\n{_extending(entry, text, tree)}"
    rest = text.split("\n", tree.body[0].end_lineno or 0)[-1]
    return docstring + rest


def write_stubs(entries: list[TaskEntry], folder: Path, force: bool) -> tuple[list[Path], list[Path]]:
    """Write `folder/L1/rms_norm.py` ...: (files written, files kept because they exist and not `force`).
    UsageError for a place that cannot be written."""
    written, kept = [], []
    for entry in entries:
        file = folder / f"{entry.id}.py"
        if file.exists() and not force:
            kept.append(file)
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(stub(entry), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{file}: {error.strerror}. Choose another folder: --output DIR") from error
        written.append(file)
    return written, kept


def _extending(entry: TaskEntry, text: str, tree: ast.Module) -> str:
    module = entry.id.replace("/", ".")
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    wanted = dict.fromkeys(entry.variants.values())
    bodies = [_class(classes[name], text.splitlines()) for name in wanted]
    used = {node.id for body in bodies for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    lines = ["from __future__ import annotations", "", *_imports(tree, used)]
    lines.append("")
    lines += [
        f"from {source.BASELINE_PACKAGE}.{module} import {name} as Baseline{name}" for name in sorted(wanted)
    ]
    return "\n".join(lines) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"


def _imports(tree: ast.Module, used: set[str]) -> list[str]:
    """The baseline's imports of outside names that the stub's signatures use."""
    found = []
    for node in tree.body:
        is_ours = isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").startswith("fastkernels")
        )
        if not isinstance(node, (ast.Import, ast.ImportFrom)) or is_ours:
            continue
        names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in used]
        if names:
            kept = (
                ast.Import(names) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, names, 0)
            )
            found.append(ast.unparse(kept))
    return found


def _class(cls: ast.ClassDef, lines: list[str]) -> str:
    functions = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
    methods = [_method(functions[name], lines) for name in ("__init__", "forward") if name in functions]
    return f"class {cls.name}(Baseline{cls.name}):\n" + "\n\n".join(methods)


def _method(function: ast.FunctionDef, lines: list[str]) -> str:
    """Signature and docstring as the baseline's file has them, over a call of the baseline's method."""
    has_docstring = ast.get_docstring(function) is not None
    first = function.body[0]
    end = (first.end_lineno or first.lineno) if has_docstring else first.lineno - 1
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args][1:]]
    names += [f"{argument.arg}={argument.arg}" for argument in function.args.kwonlyargs]
    return "\n".join([*lines[function.lineno - 1 : end], *_call(function.name, names)])


def _call(method: str, arguments: list[str]) -> list[str]:
    start = "        return super().forward(" if method == "forward" else f"        super().{method}("
    call = f"{start}{', '.join(arguments)})"
    if len(call) > _WIDTH:
        call = "\n".join([start, *(f"            {argument}," for argument in arguments), "        )"])
    return ["        # Replace this call by your own computation.", call] if method == "forward" else [call]
