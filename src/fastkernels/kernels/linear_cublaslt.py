"""linear by the fastest of the algorithms that cuBLASLt proposes; cuBLAS takes the first one.

They are timed at the first call of a weight's shape with so many rows, up to the next power of two; what was
fastest then serves every later call of these rows. So the choice, and with it the last bits of an answer, may
differ from process to process. While a graph is captured nothing can be timed: a shape that was not called
before gets the first proposal there.

T rows of x · K inputs · N outputs
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fastkernels.errors import KernelError
from fastkernels.kernels import checks
from fastkernels.kernels.launch import power_of_two

PROPOSALS = 16
LEAST_ROWS = 33  # with fewer the weight's way counts, which is not timed here: its bytes stay in the L2 cache
WORKSPACE_BYTES = 32 << 20
TIMES = 4  # that a proposal is called, after once
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_FLOAT32, _COMPUTE_FLOAT32, _TRANSPOSED, _WITH_BIAS = 0, 68, 1, 4
_TRANSPOSE_A, _EPILOGUE, _BIAS = 3, 7, 8  # attributes of a product
_MOST_WORKSPACE = 1  # attribute of a preference
_ALIGNMENT = 256  # bytes that cuBLASLt takes for granted


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", c_uint64 * 8)]


class _Proposal(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


_fastest: dict[tuple[object, ...], _Algorithm] = {}


@lru_cache
def library() -> ctypes.CDLL | None:
    """cuBLASLt, which torch has loaded; or None."""
    try:
        return ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '0').split('.')[0]}")
    except OSError:
        return None


def _call(name: str, *args: object) -> None:
    if status := getattr(library(), f"cublasLt{name}")(*args):
        raise KernelError(f"cublasLt{name} failed with {status}")


@lru_cache
def _handle(device: torch.device) -> c_void_p:
    made = c_void_p()
    with torch.cuda.device(device):
        _call("Create", byref(made))
    return made


class _Problem:
    """The product as cuBLASLt sees it, column by column: y^T [N, T] = W [K, N]^T x^T [K, T]."""

    def __init__(
        self, rows: int, inputs: int, outputs: int, strides: tuple[int, int], dtype: torch.dtype, biased: bool
    ) -> None:
        self.product, self.weight, self.x, self.y = (c_void_p() for _ in range(4))
        _call("MatmulDescCreate", byref(self.product), _COMPUTE_FLOAT32, _FLOAT32)
        self._set(_TRANSPOSE_A, c_int32(_TRANSPOSED))
        if biased:
            self._set(_EPILOGUE, c_int32(_WITH_BIAS))
        sizes = ((inputs, outputs, strides[1]), (inputs, rows, strides[0]), (outputs, rows, outputs))
        for layout, (height, width, stride) in zip((self.weight, self.x, self.y), sizes, strict=True):
            shape = c_uint64(height), c_uint64(width), c_int64(stride)
            _call("MatrixLayoutCreate", byref(layout), _TYPES[dtype], *shape)

    def _set(self, attribute: int, value: ctypes._SimpleCData) -> None:
        _call("MatmulDescSetAttribute", self.product, attribute, byref(value), c_size_t(ctypes.sizeof(value)))

    def add(self, bias_N: Tensor) -> None:
        self._set(_BIAS, c_void_p(bias_N.data_ptr()))

    def serves(self, handle: c_void_p, algorithm: _Algorithm) -> bool:
        found, layouts = _Proposal(), (self.weight, self.x, self.y, self.y)
        check: Any = library()
        status = check.cublasLtMatmulAlgoCheck(handle, self.product, *layouts, byref(algorithm), byref(found))
        return status == 0 and found.workspace <= WORKSPACE_BYTES

    def proposals(self, handle: c_void_p) -> list[_Algorithm]:
        preference, count = c_void_p(), c_int()
        found = (_Proposal * PROPOSALS)()
        _call("MatmulPreferenceCreate", byref(preference))
        most = c_uint64(WORKSPACE_BYTES)
        _call("MatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE, byref(most), c_size_t(8))
        layouts = self.weight, self.x, self.y, self.y
        wanted = preference, PROPOSALS, found, byref(count)
        _call("MatmulAlgoGetHeuristic", handle, self.product, *layouts, *wanted)
        _call("MatmulPreferenceDestroy", preference)
        return [one.algorithm for one in found[: count.value] if one.status == 0]


_problem = lru_cache(maxsize=4096)(_Problem)


def unsupported(kernel: str, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> str | None:
    if x_TK.numel() < LEAST_ROWS * x_TK.shape[-1]:
        return f"serves from {LEAST_ROWS} rows on"
    if library() is None:
        return "libcublasLt is not loaded"
    tensors = x_TK, weight_NK, *checks.given(bias_N)
    if any(tensor.data_ptr() % _ALIGNMENT for tensor in tensors):
        return f"needs tensors at multiples of {_ALIGNMENT} bytes"
    return checks.not_half(*tensors) or checks.not_aligned(*tensors)


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    x, (outputs, inputs), handle = x_TK.flatten(0, -2), weight_NK.shape, _handle(x_TK.device)
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], outputs))
    strides = x.stride(0), weight_NK.stride(0)
    problem = _problem(len(x), inputs, outputs, strides, x.dtype, bias_N is not None)
    if bias_N is not None:
        problem.add(bias_N)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=x.device)
    one, zero, stream = c_float(1.0), c_float(0.0), c_void_p(torch.cuda.current_stream(x.device).cuda_stream)

    def run(algorithm: _Algorithm) -> None:
        at_weight, at_x, at_y, at_workspace = (
            c_void_p(tensor.data_ptr()) for tensor in (weight_NK, x, y_TN, workspace)
        )
        _call(
            "Matmul", handle, problem.product, byref(one), at_weight, problem.weight, at_x, problem.x,
            byref(zero), at_y, problem.y, at_y, problem.y, byref(algorithm), at_workspace,
            c_size_t(WORKSPACE_BYTES), stream,
        )  # fmt: skip

    key = power_of_two(len(x)), inputs, outputs, strides, x.dtype, bias_N is not None, x.device
    algorithm = _fastest.get(key)
    if algorithm is None or not problem.serves(handle, algorithm):
        proposals = problem.proposals(handle)
        if not proposals:
            raise KernelError(
                f"cuBLASLt has no algorithm for {tuple(x_TK.shape)} by {tuple(weight_NK.shape)}"
            )
        algorithm = proposals[0]
        if key not in _fastest and not torch.cuda.is_current_stream_capturing():
            algorithm = _fastest[key] = min(proposals, key=lambda one: _milliseconds(lambda: run(one)))
    run(algorithm)
    return y_TN


def _milliseconds(call: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    for _ in range(TIMES):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
