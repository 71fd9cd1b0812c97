"""What all records share: frozen, and strict about names; the words of a few fields."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

DType = Literal["float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool"]
Device = Literal["cpu", "cuda"]
Size = Literal["tiny", "full"]
Contract = Literal["graph", "eager", "host", "collective"]
Skew = Literal["uniform", "zipf"]
TokenPhase = Literal["prefill", "decode"]

RANDOM_IDS = "random ids"  # prompts of a capture without a file of text
# Contracts never mix. Of the rows of a report, those of the first of these that occurs have the mean: on
# CUDA `graph`, and beside it `eager` for what cannot be captured; on a CPU `host`.
_PRIMARY_FIRST: tuple[Contract, ...] = ("graph", "host", "eager", "collective")
UNSTABLE_HALF_WIDTH = 0.05  # an interval wider than 5 % to one side: no number is claimed
_WIDTH_OF_EFFECT = 0.2  # but where the ratio is so far from 1 that this part of its logarithm is wider
# The least noise to assume, as a part of the time: one pair of processes with the same code may differ by
# less than the next. Of 345 self-tests on H200s three were 0.36, 0.66 and 0.85 % off beside pairs that
# differed by less. A single eager call has no chain in which places and code average out: its self-tests read
# 0.94 to 1.08 (docs/record/measured.md). Nor has a call of a group of ranks.
LEAST_NOISE: dict[Contract, float] = {
    "graph": 0.01,
    "host": 0.01,
    "eager": 0.08,
    "collective": 0.08,
}
# Nor do places average out in a chain of one link, of what takes a GB of memory. On an H100 products with
# 128,256 columns read 0.987 to 1.029 beside themselves (9 trials of 1, 8 and 32 rows), and pairs differed by
# 0.3 to 2.7 % there. A process keeps its place, so more samples do not help.
_LEAST_NOISE_OF_ONE_LINK = 0.03


def is_unstable(ratio: float, half_width: float) -> bool:
    """Whether an interval is too wide to claim the ratio in it. `half_width`: relative to the ratio. A ratio
    of 2 that is known to 10 % is no less of a difference for it."""
    return half_width > max(UNSTABLE_HALF_WIDTH, _WIDTH_OF_EFFECT * abs(math.log(ratio)))


def least_noise(contract: Contract, links: int | None) -> float:
    """The least noise to assume, as a part of the time. `links`: of the chain; None where nobody knows."""
    return _LEAST_NOISE_OF_ONE_LINK if contract == "graph" and links == 1 else LEAST_NOISE[contract]


_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_LEFT_OUT = "\n[...]\n"
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# Of one text of a candidate, more than any message and its traceback: an exception may say 40 MB, which took
# the table minutes to lay out.
MOST_CHARACTERS = 20_000


def printable(text: str) -> str:
    """Without colours, and with other control characters as `\\x1b`: on a terminal they could write over what
    stands above. Half a surrogate pair is `\\udcff`, as it has no place in UTF-8. Of what is longer than
    MOST_CHARACTERS the beginning and the end."""
    whole = _ends(text).encode(errors="backslashreplace").decode()
    plain = _COLOURS.sub("", whole.replace("\r\n", "\n"))
    return _ends(_CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", plain))


def _ends(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2 - len(_LEFT_OUT)
    return text[:half] + _LEFT_OUT + text[-half:]


Printable = Annotated[str, AfterValidator(printable)]  # words of a candidate


def default_size(device: str) -> Size:
    """The size of models and cases where none was asked for: a CPU is too slow for the real one."""
    return "full" if device == "cuda" else "tiny"


def primary(contracts: Iterable[Contract]) -> Contract | None:
    """The contract whose rows have the mean; None without a row."""
    return min(contracts, key=_PRIMARY_FIRST.index, default=None)


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Document(Record):
    """A record that lies in a file of its own and says there what it is."""

    kind: str
    schema_version: int = Field(1, alias="schema")

    model_config = ConfigDict(populate_by_name=True)
