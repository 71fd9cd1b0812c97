"""Modules are created where they run and in their dtype: tens of gigabytes never lie elsewhere before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def creating(device: torch.device | str, dtype: torch.dtype) -> Iterator[None]:
    """What the body creates lies on the device and has the dtype, where it names no other."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(previous)
