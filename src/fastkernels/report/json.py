"""Reports as JSON files, read back with the place of whatever is wrong in them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fastkernels.errors import FileFormatError
from fastkernels.records import AuditReport, EvalReport, GateReport, KernelReport, Report, TuneReport
from fastkernels.records.base import Document
from fastkernels.report import files

KINDS: dict[str, type[Report]] = {
    record.model_fields["kind"].default: record
    for record in (KernelReport, EvalReport, GateReport, AuditReport)
}
Asked = TypeVar("Asked", EvalReport, KernelReport)
Read = TypeVar("Read", bound=Document)
SCHEMA = 1  # of all kinds
_NEXT = "Name a report that `fk` wrote with --json"
_OTHERS = "What the programs under benchmarks/ wrote is in the tables of docs/benchmarks.md"
_MAX_PROBLEMS = 3  # of one file, in one message
_decode = json.JSONDecoder().raw_decode


def dumps(report: Report | TuneReport) -> str:
    """Indented JSON with a newline at its end; fields by their published names."""
    return report.model_dump_json(by_alias=True, indent=2) + "\n"


def write(report: Report | TuneReport, path: str | Path) -> None:
    """To a file, or to stdout for `-` (files.py). UsageError if it cannot be."""
    files.write(dumps(report), path, "--json")


def load(path: str | Path) -> Report:
    """Read a report of any kind. FileFormatError with the line for whatever is no report."""
    return _read(path, KINDS)


def load_shown(path: str | Path) -> Report | TuneReport:
    """Read a report of any kind, of `fk tune` too. FileFormatError."""
    return _read(path, {**KINDS, "tuning": TuneReport})


def load_tuning(path: str | Path) -> TuneReport:
    """Read a report of `fk tune`; FileFormatError for another kind."""
    return _read(path, {"tuning": TuneReport})


def _read(path: str | Path, kinds: Mapping[str, type[Read]]) -> Read:
    try:
        text = text_of(Path(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileFormatError(path, "", f"not compressed by gzip, or cut off. {_NEXT}") from error
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise FileFormatError(path, "", f"{problem}. {_NEXT}") from error
    if not text.strip():
        raise FileFormatError(path, "", f"empty: what was to write it ended before. {_NEXT}")
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise FileFormatError(path, f"line {error.lineno}", f"not JSON: {error.msg}. {_NEXT}") from None
    except (ValueError, RecursionError) as error:  # NaN, an integer of 5,000 digits, brackets 1,000 deep
        raise FileFormatError(path, "", f"not JSON that a report can hold: {error}") from None
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        problem = f"not a report of fk: 'kind' must be one of {', '.join(kinds)}, not {kind!r}. "
        problem += _OTHERS if isinstance(kind, str) else _NEXT
        if kind == "tuning":
            problem = f"a report of fk tune. fk report {path} shows it, alone and on the terminal; "
            problem += f"fk tune --from {path} makes a table of it"
        raise FileFormatError(path, "line 1", problem)
    if data.get("schema", SCHEMA) != SCHEMA:
        problem = f"a report of schema {data['schema']}; this version of fk reads schema {SCHEMA}. "
        problem += "Read it with the version that wrote it, or make it again with this one"
        raise FileFormatError(path, f"line {line_of(text, ['schema'])}", problem)
    try:
        return kinds[kind].model_validate_json(text)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        line = line_of(text, problems[0]["loc"])
        told = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems[:_MAX_PROBLEMS]]
        more = f" (and {len(problems) - _MAX_PROBLEMS} more)" if len(problems) > _MAX_PROBLEMS else ""
        raise FileFormatError(path, f"line {line}", "; ".join(told) + more) from None


def text_of(path: Path) -> str:
    """Of a file of JSON, or of a compressed one, `.json.gz`."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def load_eval(path: str | Path) -> EvalReport:
    """Read a report of `fk eval`; FileFormatError for any other kind."""
    return _of_kind(path, EvalReport)


def load_kernels(path: str | Path) -> KernelReport:
    """Read a report of `fk kernels`; FileFormatError for another kind."""
    return _of_kind(path, KernelReport)


def _of_kind(path: str | Path, wanted: type[Asked]) -> Asked:
    report = load(path)
    if not isinstance(report, wanted):
        verb = f"fk {wanted.model_fields['kind'].default}"
        problem = f"a report of `fk {report.kind}`, not of `{verb}`. Make one: {verb} --json PATH"
        raise FileFormatError(path, "line 1", problem)
    return report


def line_of(text: str, location: Sequence[str | int]) -> int:
    """The line where the value at `location` begins, or the innermost value on the way to it that exists."""
    at = _skip(text, 0)
    for step in location:
        inner = _inside(text, at, step)
        if inner is None:
            break
        at = inner
    return text.count("\n", 0, at) + 1


def _inside(text: str, at: int, step: str | int) -> int | None:
    """Where member `step` of the object or array at `at` begins."""
    opening = text[at]
    if opening not in "{[" or isinstance(step, int) != (opening == "["):
        return None
    at, index = _skip(text, at + 1), 0
    while text[at] not in "}]":
        key: Any = index
        if opening == "{":
            key, at = _decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # the colon
        if key == step:
            return at
        _, at = _decode(text, at)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        index += 1
    return None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
