"""A rank of a group that comes after the others, as the judge leads it through its inputs (its own end:
ranks_side.py)."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from fastkernels.runner.transfer.protocol import INPUTS_ARE_THERE


@dataclass(frozen=True)
class Late:
    """A rank whose inputs come `after_s` after the others have begun. Where all of them come by one inbox it
    holds other ones of this rank until then (`mixed`): `complete` writes the right ones, and `spoil` others
    again, once the rank has taken them."""

    rank: int
    after_s: float
    mixed: Mapping[str, Tensor]
    complete: Callable[[], None]
    spoil: Callable[[], None]


@contextlib.contextmanager
def led(late: Late | None) -> Iterator[tuple[list[int], Callable[[], None]]]:
    """A descriptor by which the late rank is led through its inputs (ranks_side.py), and what begins to lead;
    both do nothing where no rank is late."""
    if late is None:
        yield [], lambda: None
        return
    ours, theirs = socket.socketpair()
    broken: list[Exception] = []

    def lead() -> None:
        try:
            time.sleep(late.after_s)
            late.complete()
            with contextlib.suppress(OSError):  # the group has ended
                ours.send(INPUTS_ARE_THERE)
                if ours.recv(1):
                    late.spoil()
        except Exception as error:
            broken.append(error)
        finally:
            ours.close()

    leads = threading.Thread(target=lead, daemon=True)
    try:
        yield [theirs.fileno()], leads.start
    finally:
        theirs.close()
        if leads.ident is None:
            ours.close()
        else:
            with contextlib.suppress(OSError):  # unless the rank answers without having asked, it is closed
                ours.shutdown(socket.SHUT_RDWR)
            leads.join()
        if broken:
            raise broken[0]
