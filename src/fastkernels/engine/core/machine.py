"""The device and the dtype that a caller names."""

from __future__ import annotations

import torch

from fastkernels.errors import MachineError, UsageError

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def device_of(device: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is one. UsageError, MachineError."""
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if has_cuda else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device={device!r}: expected auto, cpu or cuda") from error
    if chosen.type not in ("cpu", "cuda"):
        raise UsageError(f"device={device!r}: expected auto, cpu or cuda")
    if chosen.type == "cuda" and not has_cuda:
        raise MachineError(f"device={device!r}: PyTorch sees no CUDA device here")
    return chosen if chosen.type == "cuda" else torch.device("cpu")  # cpu:0 is no other one


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    """A dtype by name. UsageError."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise UsageError(f"dtype={dtype!r}: expected auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
