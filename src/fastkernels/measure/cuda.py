"""The CUDA driver through ctypes: memory, copies, events, graphs and IPC that no Python code can patch.

Handles are taken before a candidate is imported; nothing here passes through torch's operators, which a
candidate could register again. Addresses and streams are plain integers. Everything works in torch's
primary context, so torch must have initialised the device in the calling thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

from fastkernels.errors import MachineError

_IPC_LAZY_PEER_ACCESS = 1
_PERSISTING_L2_LIMIT = 6
_EQUAL = 1  # of a value that a stream waits for
# An IPC handle opens the whole block that cuMemAlloc cut the memory from: whole blocks keep neighbours out
# of it.
BLOCK_BYTES = 2 << 20


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", c_char * 64)]


class Driver:
    """libcuda. Every failure is a MachineError that names the driver's call."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise MachineError(f"No CUDA driver: {error}") from error
        self._alloc = self._function("cuMemAlloc_v2", c_void_p, c_size_t)
        self._free = self._function("cuMemFree_v2", c_uint64)
        self._copy = self._function("cuMemcpyDtoDAsync_v2", c_uint64, c_uint64, c_size_t, c_void_p)
        self._set = self._function("cuMemsetD8Async", c_uint64, ctypes.c_ubyte, c_size_t, c_void_p)
        self._range = self._function("cuMemGetAddressRange_v2", c_void_p, c_void_p, c_uint64)
        self._get_handle = self._function("cuIpcGetMemHandle", c_void_p, c_uint64)
        self._open_handle = self._function("cuIpcOpenMemHandle_v2", c_void_p, _IpcHandle, c_uint)
        self._close_handle = self._function("cuIpcCloseMemHandle", c_uint64)
        self._event_create = self._function("cuEventCreate", c_void_p, c_uint)
        self._event_record = self._function("cuEventRecord", c_void_p, c_void_p)
        self._event_elapsed = self._function("cuEventElapsedTime", c_void_p, c_void_p, c_void_p)
        self._stream_wait = self._function("cuStreamSynchronize", c_void_p)
        self._wait_value = self._function("cuStreamWaitValue32_v2", c_void_p, c_uint64, c_uint, c_uint)
        self._write_value = self._function("cuStreamWriteValue32_v2", c_void_p, c_uint64, c_uint, c_uint)
        self._context_wait = self._function("cuCtxSynchronize")
        self._reset_persisting = self._function("cuCtxResetPersistingL2Cache")
        self._limit = self._function("cuCtxGetLimit", c_void_p, c_int)
        self._graph_create = self._function("cuGraphCreate", c_void_p, c_uint)
        self._graph_add = self._function(
            "cuGraphAddChildGraphNode", c_void_p, c_void_p, c_void_p, c_size_t, c_void_p
        )
        self._graph_instantiate = self._function(
            "cuGraphInstantiateWithFlags", c_void_p, c_void_p, c_ulonglong
        )
        self._graph_upload = self._function("cuGraphUpload", c_void_p, c_void_p)
        self._graph_launch = self._function("cuGraphLaunch", c_void_p, c_void_p)
        self._graph_destroy = self._function("cuGraphDestroy", c_void_p)
        self._executable_destroy = self._function("cuGraphExecDestroy", c_void_p)

    # ------------------------------------------------------------ memory

    def allocate(self, size: int) -> int:
        """Address of at least `size` bytes that share no block with other memory."""
        address = c_uint64()
        self._alloc(byref(address), -(-max(size, 1) // BLOCK_BYTES) * BLOCK_BYTES)
        return address.value

    def free(self, address: int) -> None:
        self._free(address)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Enqueue a copy on the device."""
        if size:
            self._copy(target, source, size, stream)

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        if size:
            self._set(address, byte, size, stream)

    def allocation(self, address: int) -> tuple[int, int]:
        """Where the allocation, or the memory of another process, that holds it begins, and its bytes."""
        base, size = c_uint64(), c_size_t()
        self._range(byref(base), byref(size), address)
        return base.value, size.value

    def export(self, address: int) -> bytes:
        """The IPC handle of an allocation; other processes see all of it."""
        handle = _IpcHandle()
        self._get_handle(byref(handle), address)
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        address = c_uint64()
        self._open_handle(byref(address), _IpcHandle.from_buffer_copy(handle), _IPC_LAZY_PEER_ACCESS)
        return address.value

    def close(self, address: int) -> None:
        self._close_handle(address)

    # ------------------------------------------------------------ graphs

    def chain(self, graphs: Sequence[int], stream: int) -> int:
        """An executable graph that runs these graphs one after another; each ends before the next begins.

        The graphs are copied into it; what their kernels read and write must live as long as it does. It is
        brought to the device on this stream, or its first launch would do it.
        """
        parent, previous = c_void_p(), None
        self._graph_create(byref(parent), 0)
        try:
            for graph in graphs:
                node = c_void_p()
                after = None if previous is None else byref(previous)
                self._graph_add(byref(node), parent, after, 0 if previous is None else 1, graph)
                previous = node
            executable = self._executable(parent)
            self._graph_upload(executable, stream)
            return executable
        finally:
            self._graph_destroy(parent)

    def launch(self, executable: int, stream: int) -> None:
        self._graph_launch(executable, stream)

    def drop(self, executable: int) -> None:
        self._executable_destroy(executable)

    def _executable(self, graph: c_void_p) -> int:
        executable = c_void_p()
        self._graph_instantiate(byref(executable), graph, 0)
        assert executable.value is not None
        return executable.value

    # ------------------------------------------------------------ events and streams

    def event(self) -> int:
        handle = c_void_p()
        self._event_create(byref(handle), 0)
        assert handle.value is not None
        return handle.value

    def record(self, event: int, stream: int) -> None:
        self._event_record(event, stream)

    def elapsed_ns(self, start: int, end: int) -> int:
        milliseconds = c_float()
        self._event_elapsed(byref(milliseconds), start, end)
        return round(milliseconds.value * 1e6)

    def wait(self, stream: int) -> None:
        self._stream_wait(stream)

    def wait_for(self, address: int, value: int, stream: int) -> None:
        """Enqueue: nothing goes on before these 32 bits, of a device or pinned, are the value. No core waits
        for it, of the host or the device."""
        self._wait_value(stream, address, value, _EQUAL)

    def tell(self, address: int, value: int, stream: int) -> None:
        """Enqueue: these 32 bits become the value, once everything before has been done."""
        self._write_value(stream, address, value, 0)

    def wait_all(self) -> None:
        """Until every stream of this process is idle."""
        self._context_wait()

    def reset_persisting_lines(self) -> None:
        """Give back L2 lines that somebody pinned."""
        self._reset_persisting()

    def persisting_l2_bytes(self) -> int:
        """How much of the L2 cache is set aside for pinned lines, and lost to everything else."""
        size = c_size_t()
        self._limit(byref(size), _PERSISTING_L2_LIMIT)
        return size.value

    # ------------------------------------------------------------ plumbing

    def _function(self, name: str, *types: Any) -> Any:
        function = getattr(self._lib, name)
        function.argtypes, function.restype = list(types), c_int

        def checked(*arguments: Any) -> None:
            if code := function(*arguments):
                self._fail(name, code)

        return checked

    def _fail(self, name: str, code: int) -> None:
        text = ctypes.c_char_p()
        self._lib.cuGetErrorString(code, byref(text))
        raise MachineError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")
