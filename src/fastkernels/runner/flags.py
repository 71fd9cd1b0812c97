"""Settings of the whole process, which a candidate must leave as they are: they would change the rest of a
model, and what another module's result is compared with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastkernels.measure.cuda import Driver

_DENORMAL = 5e-324  # a processor that flushes these takes it for 0, in Python as in torch
# What torch names by a backend and an operation; `all` holds where an operation has none of its own.
_PRECISIONS = {
    f"float32 precision of {backend} {operation}": (backend, operation)
    for backend in ("cuda", "mkldnn")
    for operation in ("all", "matmul", "conv", "rnn")
}
# Taken when the worker starts, before a candidate could replace them.
_READERS: dict[str, Callable[[], Any]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "float32 matmul precision": torch._C._get_float32_matmul_precision,
    **{name: functools.partial(torch._C._get_fp32_precision_getter, *of) for name, of in _PRECISIONS.items()},
    "deterministic algorithms": torch._C._get_deterministic_algorithms,
    "cudnn enabled": torch._C._get_cudnn_enabled,
    "cudnn benchmark": torch._C._get_cudnn_benchmark,
    "cudnn deterministic": torch._C._get_cudnn_deterministic,
    "cudnn tf32": torch._C._get_cudnn_allow_tf32,
    "fp16 accumulation": torch._C._get_cublas_allow_fp16_accumulation,
    "fp16 reduced precision": torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    "fp16 reduced precision on a CPU": torch._C._get_cpu_allow_fp16_reduced_precision_reduction,  # type: ignore
    "bf16 reduced precision": torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    "16-bit sums in attention": torch._C._get_math_sdp_allow_fp16_bf16_reduction,
    "flash attention enabled": torch._C._get_flash_sdp_enabled,
    "memory-efficient attention enabled": torch._C._get_mem_efficient_sdp_enabled,
    "plain attention enabled": torch._C._get_math_sdp_enabled,
    "cudnn attention enabled": torch._C._get_cudnn_sdp_enabled,
    "autocast on a CPU": functools.partial(torch.is_autocast_enabled, "cpu"),
    "autocast on a GPU": functools.partial(torch.is_autocast_enabled, "cuda"),
    "denormals flushed": lambda: _DENORMAL * 1.0 == 0,
    "gradients": torch.is_grad_enabled,
}


def read() -> dict[str, str]:
    """Every setting by name, as a word."""
    return {name: _word(reader) for name, reader in _READERS.items()}


def of_gpu(driver: Driver) -> dict[str, str]:
    """Those of a process on a GPU besides."""
    return {"persisting L2 bytes": str(driver.persisting_l2_bytes())}


def differences(candidate: Mapping[str, str], baseline: Mapping[str, str]) -> str:
    """What is set otherwise than the baseline's, in words; nothing where all is alike."""
    changed = [name for name, value in baseline.items() if candidate.get(name) != value]
    return "; ".join(f"{name} is {candidate.get(name)}, not {baseline[name]}" for name in changed)


def _word(reader: Callable[[], Any]) -> str:
    try:
        return str(reader())
    except RuntimeError as error:  # torch refuses to read what was set by two of its interfaces
        return str(error).partition("\n")[0]
