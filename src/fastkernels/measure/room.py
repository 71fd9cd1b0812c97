"""Whether an error says that there is no memory left.

No class tells it: CUDA's own calls (torch.AcceleratorError), its libraries' and Triton's (RuntimeError) say
it in words.
"""

from __future__ import annotations

from fastkernels.errors import MachineError

_KINDS = frozenset({"OutOfMemoryError", "MemoryError"})
_WORDS = (
    "out of memory",
    "_status_alloc_failed",
    "can't allocate memory",
    "cannot allocate memory",
    "unable to allocate",
)


def is_lacking(kind: str, message: str) -> bool:
    """Of an exception of this class with this message."""
    return kind in _KINDS or any(words in message.lower() for words in _WORDS)


def is_the_machines(error: Exception) -> bool:
    """Whether an error says that this machine cannot do it, and not that something is wrong."""
    return isinstance(error, MachineError) or is_lacking(type(error).__name__, str(error))


def in_short(error: Exception) -> str:
    """Its first sentence: torch's next ones list the processes beside this one."""
    return (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
