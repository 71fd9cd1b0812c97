"""Implementations that are production libraries: their tests on a GPU are tests/gpu/test_providers*.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fastkernels.kernels import registered

PROVIDERS = ("vllm", "flash_attn_3", "flash_attn_4", "sgl_kernel")  # of attention, by FlashAttention

LIBRARIES = ("sgl_kernel", "deep_gemm", "quack", "liger", "fla")  # of row-wise kernels and products


def others(kernel: str) -> list[str]:
    return [name for name in registered[kernel].names if name not in (*PROVIDERS, *LIBRARIES)]


@contextmanager
def untuned() -> Iterator[None]:
    """Triton takes the first configuration of a kernel: the others give the same values, each after a
    compilation."""
    from triton.runtime.autotuner import Autotuner

    tuned = Autotuner.run

    def run(self, *args, **options):
        self.configs = self.configs[:1]
        return tuned(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Autotuner, "run", run)
        yield
