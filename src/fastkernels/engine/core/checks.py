"""Whether what a caller gives is what it should be: numbers, a device, a dtype."""

from __future__ import annotations

import numbers
from typing import Any, Literal

import torch

from fastkernels.errors import MachineError, UsageError

Errors = Literal["raise", "return"]  # what a face does with a request that it cannot serve
MOST_SEED = 2**63 - 1  # of a model; NumPy's generators take none below 0
IS_SEED = "a 64-bit integer"  # of requests, in words


def is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_within(value: Any, least: float, most: float) -> bool:
    """Whether it is a number in the span; not a number (NaN) is in none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    number: Any = value
    return bool(least <= number <= most)


def is_seed(value: Any) -> bool:
    """Of a request: 64 bits with a sign."""
    return is_integer(value) and -(2**63) <= value < 2**63


def require_integer(name: str, value: Any, least: int, most: int | None = None) -> None:
    """UsageError for an argument of a constructor that is no integer of the span."""
    if is_integer(value) and value >= least and (most is None or value <= most):
        return
    span = f"must be at least {least}" if most is None else f"must lie between {least} and {most}"
    if not is_integer(value):
        span = f"must be an integer of at least {least}"
    raise UsageError(f"{name}={value!r:.60}: {span}")


def require_share(name: str, value: Any) -> None:
    """UsageError for what is no number above 0 and at most 1."""
    if not is_within(value, 0, 1) or not value:
        raise UsageError(f"{name}={value!r:.60}: must be a number above 0 and at most 1")


def require_errors(value: Any) -> None:
    """UsageError for what no face does with a request that it cannot serve."""
    if value not in ("raise", "return"):
        raise UsageError(f"errors={value!r:.60}: there are 'raise' and 'return'")


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
