"""What is compared with what: from the two words of the command line to pairs of versions.

    head                 base                 compares
    folder               (none)               candidates with the production baseline
    folder               folder               candidates with candidates, by name; one with one by itself
    folder               revision             candidates with the same folder as the revision has it
    folder               report               candidates with those that the report of fk kernels judged
    revision             revision             the baseline kernels of two commits

A word that names something that exists is a folder or a report; any other is a git revision. Only paths are
taken from a report, never its durations: two jobs differ by more than most regressions.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fastkernels import interrupts
from fastkernels.gate import commits, folders, reported, words
from fastkernels.gate.inventory import Filters
from fastkernels.gate.pairs import Comparison
from fastkernels.records import Size


@contextlib.contextmanager
def opened(head: str, base: str | None, filters: Filters, size: Size) -> Iterator[Comparison]:
    """What is to be compared; the folders of revisions last as long as the body. `size`: of the cases, where
    neither the filters nor a report says.

    UsageError and NotFoundError say which word cannot be understood, and what to write instead.
    """
    with contextlib.ExitStack() as last:
        folder = tempfile.TemporaryDirectory(prefix="fk-gate-", ignore_cleanup_errors=True)
        last.callback(interrupts.held()(folder.cleanup))
        if base is not None and words.exists(head) and words.is_file(base):
            yield reported.compare(head, base, filters)
            return
        filters = filters.model_copy(update={"size": filters.size or size})
        compare = folders.compare if words.exists(head) else commits.compare
        yield compare(head, base, filters, Path(folder.name))
