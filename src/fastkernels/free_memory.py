"""How much memory can still be taken, on a GPU or beside it."""

from __future__ import annotations

from pathlib import Path

import torch


def available_bytes(device: torch.device) -> int | None:
    """Bytes that the system has free on `device`; None where it does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    facts = Path("/proc/meminfo")
    if not facts.is_file():
        return None
    lines = dict(line.split(":", 1) for line in facts.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


def allocatable_bytes(device: torch.device) -> int | None:
    """`available_bytes` with what PyTorch keeps of freed tensors: it is there for new ones."""
    available = available_bytes(device)
    if available is None or device.type != "cuda":
        return available
    return available + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
