"""Whether a candidate's class can be called as the baseline's: `__init__` and `forward` as syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_PLAIN_BASES = {"torch.nn.Module", "torch.nn.modules.module.Module"}
_CONSTRUCTOR_RULES = {"__init__": "init-signature", "forward": "forward-signature"}


@dataclass(frozen=True)
class Parameter:
    name: str
    default: str | None  # source of the default; None: required
    keyword_only: bool

    def __str__(self) -> str:
        return self.name if self.default is None else f"{self.name}={self.default}"


def methods(cls: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[Parameter]:
    """Parameters after `self`, `*args` and `**kwargs` left out."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    found = [Parameter(a.arg, _source(d), False) for a, d in zip(positional, defaults)][1:]
    return found + [
        Parameter(a.arg, _source(d), True) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)
    ]


def differences(
    candidate: ast.ClassDef, baseline: ast.ClassDef, bases: list[str]
) -> Iterator[tuple[str, int, str]]:
    """(rule, line, message) for whatever keeps the candidate's class from the baseline's place.

    `bases`: full names of the candidate's base classes. A method that is left out may come from one of
    them; it is missing where nn.Module is the only one.
    """
    own, expected = methods(candidate), methods(baseline)
    inherits = any(base not in _PLAIN_BASES for base in bases)
    for name, rule in _CONSTRUCTOR_RULES.items():
        if name not in own:
            if name in expected and not inherits:
                yield (
                    rule,
                    candidate.lineno,
                    f"{candidate.name} has no {name}; the baseline's is {_show(expected[name])}",
                )
            continue
        wanted = parameters(expected[name]) if name in expected else []
        if problem := _difference(own[name], wanted):
            shown = _show(expected[name]) if name in expected else f"{name}(self)"
            yield rule, own[name].lineno, f"{candidate.name}.{name}: {problem}; the baseline's is {shown}"


def _difference(function: ast.FunctionDef, wanted: list[Parameter]) -> str | None:
    have = parameters(function)
    for index, parameter in enumerate(wanted):
        if index >= len(have):
            return f"lacks '{parameter.name}'"
        found = have[index]
        if found.name != parameter.name:
            return f"parameter {index + 1} is '{found.name}', not '{parameter.name}'"
        if found.default != parameter.default:
            return f"'{found}' should be '{parameter}'"
        if found.keyword_only != parameter.keyword_only:
            return f"'{found.name}' is {'keyword-only' if found.keyword_only else 'not keyword-only'}"
    for extra in have[len(wanted) :]:
        if extra.default is None:
            return f"'{extra.name}' is one required parameter too many"
    return None


def _source(expression: ast.expr | None) -> str | None:
    return None if expression is None else ast.unparse(expression)


def _show(function: ast.FunctionDef) -> str:
    return f"{function.name}({', '.join(['self', *map(str, parameters(function))])})"
