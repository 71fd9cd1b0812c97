"""Which implementation a kernel prefers on a device: a measured table, `registry/devices/<device>.yaml`.

    implementations:
      decode_attention:
      - {use: flashinfer, max_rows: 32}      # applies while the kernel's size is at most 32
      - {use: tf32x3, dtype: float32}        # applies to calls whose first tensor is float32
      - triton

Without a table for the device, or without a row for the kernel, the kernel's own order holds (base.py).
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import yaml

from fastkernels.errors import FileFormatError
from fastkernels.layout import data_dir


class Entry(NamedTuple):
    """One preference: an implementation, the largest size for which it holds, and the dtype of the call's
    first tensor (None: every one)."""

    use: str
    max_rows: int | None = None
    dtype: str | None = None


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's interpreter, so also on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def slug(name: str) -> str:
    """`NVIDIA H200` -> `nvidia-h200`: the file name of a device's facts."""
    return name.lower().replace(" ", "-")


@lru_cache
def device_slug(device: str) -> str:
    return slug(torch.cuda.get_device_name()) if device == "cuda" else device


@lru_cache
def table(device: str) -> dict[str, list[Entry]]:
    """The measured preferences for this kind of device, by kernel; empty where none was measured.

    Raises FileFormatError where the file's `implementations` block is not of the form above.
    """
    path = data_dir("registry") / "devices" / f"{device_slug(device)}.yaml"
    if not path.is_file():
        return {}
    try:
        rows = (yaml.safe_load(path.read_text()) or {}).get("implementations") or {}
        return {kernel: [_entry(entry) for entry in entries] for kernel, entries in rows.items()}
    except (yaml.YAMLError, TypeError, AttributeError) as error:
        raise FileFormatError(path, "implementations", str(error)) from error


def preferred(kernel: str, own: list[Entry], device: str) -> list[Entry]:
    """What to try in turn, `own` where nothing was measured; the last is always `reference`."""
    return [*table(device).get(kernel, own), Entry("reference")]


def _entry(entry: Any) -> Entry:
    return Entry(entry) if isinstance(entry, str) else Entry(**entry)
