"""One file for each reference library: which architectures it serves, with what workloads, and both sides."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from references.base import Comparison


def _all() -> list[Comparison]:
    """In the order of their files. The first one of an architecture is its reference where none is named."""
    files = [import_module(f"references.{found.name}") for found in iter_modules(__path__)]
    return [each for file in files for each in getattr(file, "COMPARISONS", ())]


def comparisons(architecture: str) -> dict[str, Comparison]:
    """By the name of the reference; empty for an architecture that none of them serves."""
    return {each.reference: each for each in _all() if each.architecture == architecture}


def architectures() -> list[str]:
    return sorted({each.architecture for each in _all()})
