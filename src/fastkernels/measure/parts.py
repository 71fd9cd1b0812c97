"""What parts of one report, each of other cases or workloads, must have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastkernels.errors import UsageError
from fastkernels.records import Environment

# Their hours, and which one of several equal machines it was, are their own.
ONE_MACHINE = ("device", "torch", "triton", "cuda", "driver", "libraries", "fastkernels", "git_revision")


def require_one_machine(one: Environment, other: Environment) -> None:
    """UsageError where two parts are of different kinds of machine, or of different versions."""
    require_same(one.model_dump(), other.model_dump(), ONE_MACHINE, "environment")


def require_same(one: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """UsageError, which tells the differences, where the two differ in one of `names`."""
    if told := differing(one, other, names):
        raise UsageError(f"Parts of one report have one {what}, and these differ: {'; '.join(told)}")


def differing(one: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """`torch 2.13.0 and 2.12.1` for each of `names` in which the two differ."""
    pairs = [(name, one.get(name), other.get(name)) for name in names]
    return [f"{name} {mine} and {theirs}" for name, mine, theirs in pairs if mine != theirs]
