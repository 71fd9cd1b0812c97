"""Whether GPUs work for the judge alone: how long they take to read some gigabytes of their memory.

Processes share a GPU by turns, of 2.2 ms on an H100, so reads that last for several turns take twice as long
beside a kernel of another process, however small: 14 ms, and 6.4 alone. Beside its copies from the host,
which share the memory and no turns, they take 7.3; beside a stream that only waits for a word in memory, as
long as alone (docs/record/measured.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastkernels.measure.cold import l2_flush

READ_BYTES = 16e9
_FIRST = 5  # readings of which the shortest is what they take alone


class SoleUse:
    """Of these GPUs. Made where nobody else works there: at the beginning of a run."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self._gpus = gpus
        self.begin()

    def begin(self) -> None:
        """What reads take now is what they take alone."""
        self._alone_ms = {gpu: min(_read_ms(gpu) for _ in range(_FIRST)) for gpu in self._gpus}

    def slowdown(self) -> float:
        """What reads take now, beside the shortest so far, on the GPU where that is most; about 1 alone."""
        most = 1.0
        for gpu, alone_ms in self._alone_ms.items():
            now_ms = _read_ms(gpu)
            self._alone_ms[gpu] = min(alone_ms, now_ms)
            most = max(most, now_ms / alone_ms)
        return most


def _read_ms(gpu: int) -> float:
    with torch.cuda.device(gpu):
        torch.cuda.synchronize()  # what the judge has enqueued itself
        flush, stream = l2_flush(gpu), torch.cuda.Stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            for _ in range(round(READ_BYTES / flush.read_bytes)):
                flush.read()
            end.record()
        end.synchronize()
        return begin.elapsed_time(end)
