"""Implementations that are production libraries: their tests on a GPU are tests/gpu/test_providers.py."""

from __future__ import annotations

from fastkernels.kernels import registered

PROVIDERS = ("vllm", "flash_attn_3", "flash_attn_4")


def others(kernel: str) -> list[str]:
    return [name for name in registered[kernel].names if name not in PROVIDERS]
