"""Cold caches and poisoned memory before a timed call.

CUDA    a read of twice the L2 cache evicts every line that the copies left there (a read, because written
        lines would be flushed to memory during the timed call). The judge does it, in its own process
        (runner/transfer/gpu_hold.py). Pinned lines are given back first.
CPU     nothing: the inputs are copied in just before the call by the same core, so both sides find them in
        the same caches, as a layer finds its activations in production. The `host` contract is a warm one.

Poison is 0xFF in every byte: NaN in every float, -1 in every integer. A kernel that reads memory it never
wrote, or returns some, shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch

from fastkernels.measure.cuda import Driver

FLUSH_FACTOR = 2  # times the L2 cache: replacement is not strictly least-recently-used
POISON = 0xFF
_address = torch._C.TensorBase.data_ptr  # of an immutable type: nobody can replace it


class L2Flush:
    """`flush()` enqueues the eviction on the current stream."""

    def __init__(self, driver: Driver, stream: torch.cuda.Stream) -> None:
        self._driver = driver
        size = FLUSH_FACTOR * torch.cuda.get_device_properties(stream.device).L2_cache_size
        self._memory = torch.zeros(size // 4, dtype=torch.float32, device="cuda")
        self._sum = torch.empty((), dtype=torch.float32, device="cuda")
        with torch.cuda.stream(stream):
            torch.sum(self._memory, dim=0, out=self._sum)  # workspaces are made outside the capture
        stream.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            torch.sum(self._memory, dim=0, out=self._sum)
        self._replay = torch._C._CUDAGraph.replay

    @property
    def read_bytes(self) -> int:
        return self._memory.nbytes

    def read(self) -> None:
        """The read alone."""
        self._replay(self._graph)

    def __call__(self) -> None:
        self._driver.reset_persisting_lines()
        self.read()


@functools.cache
def l2_flush(gpu: int) -> L2Flush:
    """Of the current GPU, which this is."""
    flush = L2Flush(Driver(), torch.cuda.Stream())
    flush()  # code is loaded at its first use, which may wait for streams that are held
    torch.cuda.synchronize()
    return flush


def poison_free_memory(sizes: Iterable[int], device: str, fill: Callable[[int, int, int], None]) -> None:
    """Fill free blocks of the allocator that results of these sizes (bytes) will probably be cut from.

    `fill(address, byte, size)` writes past torch's operators.
    """
    blocks = [torch.empty(max(size, 1), dtype=torch.uint8, device=device) for size in sizes]
    for block in blocks:
        fill(_address(block), POISON, block.numel())
