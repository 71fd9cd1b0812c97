"""What a side of a whole-model trial may answer. Nothing is believed: a candidate runs in that process.

    found = read(side, Sites, "sites").sites

An answer of another form is a failure of its side, a value where that is the candidate. Numbers may be NaN or
infinite: they are the answer of a model that computes so, and as far off as can be (score/calibrate.py).
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from fastkernels.records import Failure, Printable, Record
from fastkernels.runner.models.sides import SideFailure, SideHandle

MOST_CHARACTERS = 300

Count = Annotated[int, Field(ge=0)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Reply(Record):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Sites(_Reply):
    sites: dict[Printable, list[str]]


class Proof(_Reply):
    calls: dict[str, Count]
    site_s: Seconds
    total_s: Annotated[Seconds, Field(gt=0)]
    put_back: list[Printable] = []


class Stats(_Reply):
    engine: dict[str, Any]
    passed_over: dict[Printable, Count]
    settings: dict[Printable, Printable]


class Tokens(_Reply):
    token_ids: list[list[TokenId]]


class Forced(_Reply):
    argmax: list[list[TokenId]]
    top: list[list[dict[str, float]]]


class Digests(_Reply):
    digests: list[str]


class Outputs(_Reply):
    answers: list[dict[str, dict[str, Any]]]


Kind = TypeVar("Kind", bound=_Reply)


def read(side: SideHandle, kind: type[Kind], do: str, **arguments: Any) -> Kind:
    """Ask a side; SideFailure where what it says is no `kind`."""
    return parsed(side, kind, do, side.call(do, **arguments))


def parsed(side: SideHandle, kind: type[Kind], do: str, said: dict[str, Any]) -> Kind:
    """`read` of what a side has said already: a clock may have run while it spoke."""
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise garbled(side, do, f"{where}: {first['msg']}") from error


def garbled(side: SideHandle, do: str, why: str) -> SideFailure:
    return SideFailure(side.side, Failure(message=f"garbled answer to '{do}': {why}"[:MOST_CHARACTERS]))
