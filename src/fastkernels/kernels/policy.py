"""Which implementation a kernel prefers on a device: a measured table, `registry/devices/<device>.yaml`.

    implementations:
      decode_attention:
      - {use: flashinfer, max_rows: 32}      # applies while the kernel's size is at most 32
      - triton

Without a table for the device, or without a row for the kernel, the declared order of the kernel holds (CUDA), and
`reference` on every other device.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import torch
import yaml

from fastkernels.layout import data_dir


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
def table(device: str) -> dict[str, list[Any]]:
    """The measured preferences for this kind of device, by kernel; empty where none was measured."""
    path = data_dir("registry") / "devices" / f"{device_slug(device)}.yaml"
    return yaml.safe_load(path.read_text()).get("implementations", {}) if path.is_file() else {}


def preferred(kernel: str, declared: list[str], size: int, device: str) -> list[str]:
    """Implementation names, best first, for a call of this size; `reference` is always the last resort."""
    entries = table(device).get(kernel)
    if entries is None:
        return [*declared, "reference"] if device == "cuda" else ["reference"]
    names = []
    for entry in entries:
        if isinstance(entry, str):
            names.append(entry)
        elif size <= entry.get("max_rows", size):
            names.append(entry["use"])
    return [*names, "reference"]
