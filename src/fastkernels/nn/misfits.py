"""What of a checkpoint does not fit a model: all of it in one error, up to a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest

from fastkernels.errors import WeightsError

MAX_REPORTED = 20


@dataclass
class Misfits:
    """One line for each tensor."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)

    def lacks(self, name: str, shape: Sequence[int], repeated: str | None = None) -> None:
        """repeated: the tensor that it would repeat if the configuration tied them."""
        hint = f'; "tie_word_embeddings": true in config.json would take {repeated}' if repeated else ""
        self.missing.append(f"missing     {name}, expected {list(shape)}{hint}")

    def has_wrong_shape(
        self, name: str, shape: Sequence[int], expected: Sequence[int], why: str = ""
    ) -> None:
        self.misshapen.append(f"misshapen   {name} {list(shape)}, expected {list(expected)}{why}")

    def contradicts(self, name: str, first: str) -> None:
        self.unequal.append(
            f"unequal     {name} differs from {first}, but one parameter is tied to both: if each is meant, "
            'set "tie_word_embeddings": false in config.json; if not, remove the wrong tensor'
        )

    def check(self, model: str) -> None:
        """Raises a WeightsError that names them, if there are any."""
        kinds = list(vars(self).values())
        total = sum(map(len, kinds))
        if not total:
            return
        counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in vars(self).items() if lines)
        # Turns, so that many of one kind do not hide another.
        turns = (line for line in chain.from_iterable(zip_longest(*kinds)) if line)
        shown = sorted(islice(turns, MAX_REPORTED), key=lambda line: line.split()[0])
        more = [f"and {total - len(shown)} more"] if total > len(shown) else []
        raise WeightsError("\n  ".join([f"The weights do not fit {model}: {counts}", *shown, *more]))
