"""The kernels that a candidate defines itself: names of functions in its files, read without importing them.

    Triton, Gluon    functions under @triton.jit or @gluon.jit, tuned or not, or given to triton.jit(f)
    CuTe DSL         functions and methods under @cute.kernel
    CUDA             `__global__` functions, in files beside the candidate or in strings of its Python files

Comments, docstrings and plain Python functions define no kernel.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastkernels.loader import files, source

CUDA_SUFFIXES = {".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp"}
_ATTRIBUTE = re.compile(r"(?<!\w)__\w+(?<=__)\s*\((?:[^()]|\([^()]*\))*\)")  # __launch_bounds__(256)
_GLOBAL = re.compile(r"__global__\b")
# What has no end goes on to the end of the text: to look for one from each later place would take for ever.
_UNUSED = re.compile(
    r'R"(?P<mark>\w*)\((?:.*?\)(?P=mark)"|.*)'  # a raw string
    r'|"(?:\\.|[^"\\\n])*"?'
    r"|'(?:\\.|[^'\\\n])'"  # or '"' would open a string
    r"|//(?:\\\n|[^\n])*"
    r"|/\*(?:.*?\*/|.*)"
    r"|^[ \t]*#[ \t]*if[ \t]+0\b(?:.*?^[ \t]*#[ \t]*(?:else|elif|endif)\b|.*)",
    re.DOTALL | re.MULTILINE,
)


def kernel_names(layers: Iterable[Path]) -> frozenset[str]:
    """Of all files under the layers of a candidate, as a profiler says them, or with `*` for what a compiler
    puts into them."""
    found: set[str] = set()
    for layer in layers:
        for file in files.below(layer):
            if file.suffix == ".py":
                found |= _of_python(file)
            elif file.suffix in CUDA_SUFFIXES:
                with contextlib.suppress(
                    OSError
                ):  # a folder of that name, a link that leads nowhere, too long
                    found |= _of_cuda(files.read(file).decode(errors="replace"))
    return frozenset(found)


def _of_python(file: Path) -> set[str]:
    try:
        tree = source.parse(file)
    except SyntaxError:
        return set()  # it defines nothing that could run
    return {*_jitted(tree), *(name for text in _strings(tree) for name in _of_cuda(text))}


def _jitted(tree: ast.Module) -> Iterator[str]:
    imported = source.imported_names(tree)
    classes = {
        id(method): owner.name
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                maker = decorator.func if isinstance(decorator, ast.Call) else decorator
                if _makes(maker, imported, "jit", {"triton", "gluon"}):
                    yield node.name
                elif _makes(maker, imported, "kernel", {"cute", "cutlass"}):
                    # kernel_cutlass_scale_tensorptrf32..., kernel_cutlass_run_mineNorm_object_at_...
                    owner = classes.get(id(node))
                    yield f"kernel_cutlass_{node.name}_*" + (f"{owner}_object_at_*" if owner else "")
        elif isinstance(node, ast.Call) and _makes(node.func, imported, "jit", {"triton", "gluon"}):
            yield from (given.id for given in node.args[:1] if isinstance(given, ast.Name))


def _makes(maker: ast.expr, imported: dict[str, str], last: str, libraries: set[str]) -> bool:
    """Whether an expression names `last` of these libraries: `triton.jit`, or `jit` imported from it."""
    *parts, name = (source.resolved(maker, imported) or "").split(".")
    return name == last and not libraries.isdisjoint(parts)


def _strings(tree: ast.Module) -> Iterator[str]:
    """All but docstrings, and whatever else stands alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def _of_cuda(text: str) -> set[str]:
    found: set[str] = set()
    for after in _GLOBAL.split(_ATTRIBUTE.sub("", _UNUSED.sub(" ", text)))[1:]:
        head, parenthesis, _ = after.partition("(")
        if parenthesis and not {";", "{"} & set(head):
            found.add(re.split(r"\W", head.rstrip())[-1])  # the word before it, or nothing
    return found - {""}
