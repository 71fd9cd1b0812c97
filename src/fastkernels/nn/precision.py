"""Parts of a model that are not rounded to its dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def at_least_float32() -> Iterator[None]:
    """Parameters that the body creates are float32, in a float64 model float64."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.promote_types(previous, torch.float32))
    try:
        yield
    finally:
        torch.set_default_dtype(previous)
