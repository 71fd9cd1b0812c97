"""The bar that shows how many requests of a call have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastkernels.errors import UsageError

UseTqdm = bool | Callable[..., Any]  # or what makes a bar, called as tqdm is


@contextmanager
def bar(use_tqdm: UseTqdm, total: int) -> Iterator[Callable[[], object]]:
    """What to call when one of `total` requests has ended; UsageError for what is no choice of a bar."""
    if not isinstance(use_tqdm, bool) and not callable(use_tqdm):
        raise UsageError(f"use_tqdm={use_tqdm!r:.60}: True, False or what makes a bar, as tqdm does")
    if not use_tqdm:
        yield lambda: None
        return
    from tqdm import tqdm

    make = tqdm if use_tqdm is True else use_tqdm
    with make(total=total, desc="Processed prompts", dynamic_ncols=True) as shown:
        yield lambda: shown.update(1)
