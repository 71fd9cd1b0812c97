"""Settings of the whole process, which a candidate must leave as they are: they would change the rest of a
model, and what another module's result is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

# Taken when the worker starts, before a candidate could replace them.
_READERS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "float32 matmul precision": torch._C._get_float32_matmul_precision,
    "deterministic algorithms": torch._C._get_deterministic_algorithms,
    "cudnn benchmark": torch._C._get_cudnn_benchmark,
    "cudnn deterministic": torch._C._get_cudnn_deterministic,
    "fp16 reduced precision": torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    "bf16 reduced precision": torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    "gradients": torch.is_grad_enabled,
}


def read() -> dict[str, str]:
    """Every setting by name, as a word."""
    return {name: _word(reader) for name, reader in _READERS.items()}


def differences(candidate: Mapping[str, str], baseline: Mapping[str, str]) -> str:
    """What is set otherwise than the baseline's, in words; nothing where all is alike."""
    changed = [name for name, value in baseline.items() if candidate.get(name) != value]
    return "; ".join(f"{name} is {candidate.get(name)}, not {baseline[name]}" for name in changed)


def _word(reader: Callable[[], Any]) -> str:
    try:
        return str(reader())
    except RuntimeError as error:  # torch refuses to read what was set by two of its interfaces
        return str(error).partition("\n")[0]
