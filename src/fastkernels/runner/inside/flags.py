"""Settings of the whole process, which a candidate must leave as they are: they would change the rest of a
model, and what another module's result is compared with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fastkernels.measure.cuda import Driver

_DENORMAL = 5e-324  # a processor that flushes these takes it for 0, in Python as in torch
# What torch names by a backend and an operation; `all` holds where an operation has none of its own, and that
# of `generic` where a backend has none.
_PRECISIONS = {
    "float32 precision": ("generic", "all"),
    **{
        f"float32 precision of {backend} {operation}": (backend, operation)
        for backend in ("cuda", "mkldnn")
        for operation in ("all", "matmul", "conv", "rnn")
    },
}
_C, _MATMUL = torch._C, torch.backends.cuda.matmul


def _precision(backend: str, operation: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return (
        functools.partial(_C._get_fp32_precision_getter, backend, operation),
        functools.partial(_C._set_fp32_precision_setter, backend, operation),
    )


def _autocast(device: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return (
        functools.partial(torch.is_autocast_enabled, device),
        functools.partial(torch.set_autocast_enabled, device),
    )


# name -> what reads it and what sets it, taken when the worker starts, before a candidate could replace them.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    # None was set when the worker started, and to set one, even the CPU, slows every later call down.
    "default device": (torch.get_default_device, lambda _, put=torch.set_default_device: put(None)),
    "float32 matmul precision": (_C._get_float32_matmul_precision, _C._set_float32_matmul_precision),
    **{name: _precision(*of) for name, of in _PRECISIONS.items()},
    "deterministic algorithms": (_C._get_deterministic_algorithms, _C._set_deterministic_algorithms),
    "cudnn enabled": (_C._get_cudnn_enabled, _C._set_cudnn_enabled),
    "cudnn benchmark": (_C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    "cudnn deterministic": (_C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
    "cudnn tf32": (_C._get_cudnn_allow_tf32, _C._set_cudnn_allow_tf32),
    "fp16 accumulation": (_C._get_cublas_allow_fp16_accumulation, _C._set_cublas_allow_fp16_accumulation),
    # Both answer with two values, and are set with two by these names alone.
    "fp16 reduced precision": (
        _C._get_cublas_allow_fp16_reduced_precision_reduction,
        functools.partial(setattr, _MATMUL, "allow_fp16_reduced_precision_reduction"),
    ),
    "bf16 reduced precision": (
        _C._get_cublas_allow_bf16_reduced_precision_reduction,
        functools.partial(setattr, _MATMUL, "allow_bf16_reduced_precision_reduction"),
    ),
    "fp16 reduced precision on a CPU": (
        _C._get_cpu_allow_fp16_reduced_precision_reduction,  # type: ignore
        _C._set_cpu_allow_fp16_reduced_precision_reduction,  # type: ignore
    ),
    "16-bit sums in attention": (
        _C._get_math_sdp_allow_fp16_bf16_reduction,
        _C._set_math_sdp_allow_fp16_bf16_reduction,
    ),
    "flash attention enabled": (_C._get_flash_sdp_enabled, _C._set_sdp_use_flash),
    "memory-efficient attention enabled": (_C._get_mem_efficient_sdp_enabled, _C._set_sdp_use_mem_efficient),
    "plain attention enabled": (_C._get_math_sdp_enabled, _C._set_sdp_use_math),
    "cudnn attention enabled": (_C._get_cudnn_sdp_enabled, _C._set_sdp_use_cudnn),
    "autocast on a CPU": _autocast("cpu"),
    "autocast on a GPU": _autocast("cuda"),
    "denormals flushed": (lambda: _DENORMAL * 1.0 == 0, torch.set_flush_denormal),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
}
_PASSES = 2  # torch's older name for the precision of products sets what the newer ones say


class Kept:
    """The settings as they are when this is made. Imports of libraries change some, also inside a first call:
    importing vLLM turns cuDNN's attention off. That is no tampering: what counts is what holds while calls
    are captured and timed."""

    def __init__(self) -> None:
        self._before = {name: (_tried(get), get, put) for name, (get, put) in _SETTINGS.items()}

    def put_back(self) -> list[str]:
        """The names of those that have changed since; they are as before again."""
        first = changed = self._changed()
        for _ in range(_PASSES):
            for name in changed:
                value, _, put = self._before[name]
                put(value)
            changed = self._changed()
        return first

    def _changed(self) -> list[str]:
        return [name for name, (value, get, _) in self._before.items() if _tried(get) != value]


def told(put_back: Sequence[str]) -> str:
    """For the notes of a report."""
    return f"settings that the candidate's imports or first call changed were put back: {', '.join(put_back)}"


def read() -> dict[str, str]:
    """Every setting by name, as a word."""
    return {name: str(_tried(get)) for name, (get, _) in _SETTINGS.items()}


def of_gpu(driver: Driver) -> dict[str, str]:
    """Those of a process on a GPU besides."""
    return {"persisting L2 bytes": str(driver.persisting_l2_bytes())}


def differences(candidate: Mapping[str, str], baseline: Mapping[str, str]) -> str:
    """What is set otherwise than the baseline's, in words; nothing where all is alike."""
    changed = [name for name, value in baseline.items() if candidate.get(name) != value]
    return "; ".join(f"{name} is {candidate.get(name)}, not {baseline[name]}" for name in changed)


def _tried(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except RuntimeError as error:  # torch refuses to read what was set by two of its interfaces
        return str(error).partition("\n")[0]
