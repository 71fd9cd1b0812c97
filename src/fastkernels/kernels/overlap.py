"""Kernels that start while the one ahead of them ends (programmatic dependent launch, from Hopper on).

    @triton.jit
    def _kernel(..., OVERLAPS: tl.constexpr):
        follow(OVERLAPS)                        before anything is read or written
    _kernel[grid](..., **overlap(device))

Between two kernels of a CUDA graph about 0.6 us pass: the second is launched when the first has ended. With
this option its programs are in place by then, if the first has let it begin; it waits for the end itself, so
nothing changes in what it reads. What does not depend on the kernel ahead may be read before: kernels/gemv.py
and kernels/skinny.py have weights on their way by then.
"""

# Triton types a device function's arguments as what a launch passes.
# pyright: reportArgumentType=false

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@lru_cache
def overlapping(device: torch.device) -> bool:
    """Whether a kernel here may start while the one before it ends."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def overlap(device: torch.device) -> dict[str, Any]:
    """Options of a launch whose kernel calls `follow`."""
    overlaps = overlapping(device)
    return {"OVERLAPS": overlaps, **({"launch_pdl": True} if overlaps else {})}


@triton.jit
def follow(OVERLAPS: tl.constexpr):
    """Wait until the kernel ahead has ended and what it wrote can be read; then let the next one begin.

    In this order: of a chain of kernels that let the next one begin before they wait, all begin at once, and
    the programs of the product at its end are placed while the product ahead still runs: two on processors
    that have room, none on others. At 32 rows that cost 20 us a layer (docs/record/measured.md).
    """
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
