"""The kernels that a candidate defines itself: names of functions in its files, read without importing them.

Python functions (a Triton or DSL kernel carries its function's name), and `__global__` functions of CUDA
sources, in files beside the candidate or in strings of its Python files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

CUDA_SUFFIXES = {".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp"}
_BOUNDS = re.compile(r"__launch_bounds__\s*\([^)]*\)")
_GLOBAL = re.compile(r"__global__\b[^;{(]*?(\w+)\s*\(")  # the word before the first parenthesis


def kernel_names(layers: Iterable[Path]) -> frozenset[str]:
    """Of all files under the layers of a candidate."""
    found: set[str] = set()
    for layer in layers:
        for file in sorted(layer.rglob("*")):
            if file.suffix == ".py":
                found |= _of_python(file.read_text(encoding="utf-8", errors="replace"))
            elif file.suffix in CUDA_SUFFIXES:
                found |= _of_cuda(file.read_text(encoding="utf-8", errors="replace"))
    return frozenset(found)


def _of_python(source: str) -> set[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()  # it defines nothing that could run
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return names | {name for text in strings if isinstance(text, str) for name in _of_cuda(text)}


def _of_cuda(source: str) -> set[str]:
    return set(_GLOBAL.findall(_BOUNDS.sub("", source)))
