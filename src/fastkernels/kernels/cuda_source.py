"""CUDA C++ compiled at its first use by NVRTC, which torch brings along, and launched through the driver.

    code = compiled(source, "sm_90a")                      about a second, then from Triton's cache
    Function(code, "prefill", shared_bytes).launch(grid, 384, params)

A kernel takes one struct of parameters, `__grid_constant__`, in whose head tensor maps of the copy engine may
lie. No compiler and no header are needed on the machine.
"""

from __future__ import annotations

import ctypes
import hashlib
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.runtime.cache import get_cache_manager

from fastkernels.errors import KernelError

MAP_BYTES = 128
MISSING = "libnvrtc is neither loaded nor beside torch: install nvidia-cuda-nvrtc"
_OPTIONS = ("--std=c++17",)
_FILE = "kernel.cubin"
_MAP_ALIGNMENT = 64
_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_OVERLAPS = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_MAP_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
_SWIZZLE_128 = 3
_PROMOTE_256 = 3


@lru_cache
def nvrtc() -> ctypes.CDLL | None:
    """NVRTC of torch's CUDA version, which torch has loaded or its wheels or the toolkit hold; or None."""
    major = (torch.version.cuda or "13").split(".")[0]
    name = f"libnvrtc.so.{major}"
    wheels = Path(torch.__file__).parent.parent / "nvidia"
    for path in (name, *wheels.glob(f"*/lib/{name}"), f"/usr/local/cuda/lib64/{name}"):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


def compiled(source: str, architecture: str) -> bytes:
    """Machine code of a translation unit for an architecture, `sm_90a`. Raises KernelError with the log.

    It is kept in Triton's cache: where that lies, and who may write there, is decided once for both.
    """
    library = nvrtc()
    if library is None:
        raise KernelError(MISSING)
    versions = c_int(), c_int()
    library.nvrtcVersion(*(byref(number) for number in versions))
    what = f"{[number.value for number in versions]} {_OPTIONS} {architecture}\n{source}"
    cache = get_cache_manager(hashlib.sha256(what.encode()).hexdigest())
    if (kept := cache.get_file(_FILE)) is not None:
        return Path(kept).read_bytes()
    code = _compile(library, source, architecture)
    cache.put(code, _FILE)
    return code


def _compile(library: ctypes.CDLL, source: str, architecture: str) -> bytes:
    program = c_void_p()

    def call(name: str, *args: Any) -> None:
        if code := getattr(library, name)(*args):
            size = c_size_t()
            library.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(size.value or 1)
            library.nvrtcGetProgramLog(program, log)
            raise KernelError(f"{name} failed with {code}: {log.value.decode()}")

    call("nvrtcCreateProgram", byref(program), source.encode(), b"kernel.cu", 0, None, None)
    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *_OPTIONS)]
    call("nvrtcCompileProgram", program, len(options), (c_char_p * len(options))(*options))
    size = c_size_t()
    call("nvrtcGetCUBINSize", program, byref(size))
    code = ctypes.create_string_buffer(size.value)
    call("nvrtcGetCUBIN", program, code)
    library.nvrtcDestroyProgram(byref(program))
    return code.raw


@lru_cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code:
        text = c_char_p()
        driver().cuGetErrorString(code, byref(text))
        raise KernelError(f"{what}: {text.value.decode() if text.value else code}")


class Function:
    """A kernel of a loaded module, with the dynamic shared memory that every launch of it gets."""

    def __init__(self, code: bytes, name: str, shared_bytes: int) -> None:
        self._module, self._handle, self._shared_bytes = c_void_p(), c_void_p(), shared_bytes
        _check(driver().cuModuleLoadData(byref(self._module), code), f"loading {name}")
        found = driver().cuModuleGetFunction(byref(self._handle), self._module, name.encode())
        _check(found, f"finding {name}")
        allowed = driver().cuFuncSetAttribute(self._handle, _SHARED_MEMORY, shared_bytes)
        _check(allowed, f"{shared_bytes} bytes of shared memory for {name}")

    def launch(self, grid: tuple[int, int, int], threads: int, params: Params) -> None:
        """On the current stream. It may begin before the kernel ahead ends, and waits for that itself: the
        first that it does is `griddepcontrol.wait` (kernels/overlap.py)."""
        stream = torch.cuda.current_stream().cuda_stream
        overlaps = ctypes.pointer(_Attribute(_OVERLAPS, 0, 1))
        config = _Config(*grid, threads, 1, 1, self._shared_bytes, stream, overlaps, 1)
        args = (c_void_p * 1)(params.address)
        _check(driver().cuLaunchKernelEx(byref(config), self._handle, args, None), "launch")


class _Attribute(ctypes.Structure):
    _fields_ = [("id", c_int), ("pad", c_int), ("value", c_int), ("rest", c_int * 15)]


class _Config(ctypes.Structure):
    _fields_ = [(name, c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", c_uint),
    ]


class Params:
    """A struct of parameters: tensor maps first, then `fields` of ctypes in the kernel's order."""

    def __init__(self, maps: list[bytes], fields: type[ctypes.Structure], **values: Any) -> None:
        head = len(maps) * MAP_BYTES
        self._buffer = ctypes.create_string_buffer(head + ctypes.sizeof(fields) + 2 * _MAP_ALIGNMENT)
        at = ctypes.addressof(self._buffer)
        self.address = at + -at % _MAP_ALIGNMENT
        for index, tensor_map in enumerate(maps):
            ctypes.memmove(self.address + index * MAP_BYTES, tensor_map, MAP_BYTES)
        struct = fields.from_address(self.address + head)
        for name, value in values.items():
            setattr(struct, name, value)


def tensor_map(tensor: Tensor, order: tuple[int, ...], box: tuple[int, ...]) -> bytes:
    """How the copy engine reads boxes of a tensor, 128-byte swizzled, zeros outside.

    order: dimensions of the tensor from the contiguous one outward. box: elements in each, in that order.
    """
    shape, strides = (tuple(of[d] for d in order) for of in (tensor.shape, tensor.stride()))
    return _tensor_map(tensor.data_ptr(), tensor.dtype, shape, strides, box)


@lru_cache(maxsize=256)
def _tensor_map(
    at: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> bytes:
    rank = len(shape)
    # A stride of a dimension of one element says nothing, and may be one that the engine refuses.
    steps = (
        stride * dtype.itemsize if n > 1 else 16 for n, stride in zip(shape[1:], strides[1:], strict=True)
    )
    buffer = ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGNMENT)
    to = ctypes.addressof(buffer)
    to += -to % _MAP_ALIGNMENT
    code = driver().cuTensorMapEncodeTiled(
        c_void_p(to), _MAP_TYPES[dtype], rank, c_void_p(at), (c_uint64 * rank)(*shape),
        (c_uint64 * (rank - 1))(*steps), (c_uint32 * rank)(*box), (c_uint32 * rank)(*[1] * rank),
        0, _SWIZZLE_128, _PROMOTE_256, 0,
    )  # fmt: skip
    _check(code, f"tensor map of {shape} with strides {strides} and box {box}")
    return ctypes.string_at(to, MAP_BYTES)
