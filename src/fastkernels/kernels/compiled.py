"""The `inductor` implementations: a kernel's reference, compiled by torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# torch stops at 8 variants of a function for the whole process. One reference serves every width, dtype and
# rank of a process that judges many cases; past the limit `fullgraph` would raise in the middle of a run.
VARIANTS = 256


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as one Inductor graph: specialised on the first shape, dynamic sizes from the second on.

    The compiler is loaded by the first call.
    """

    @cache
    def graph() -> Callable[P, R]:
        import torch._dynamo

        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, VARIANTS)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, VARIANTS)
        return torch.compile(function, fullgraph=True)

    return lambda *args, **kwargs: graph()(*args, **kwargs)
