"""Reports as JSON files: written whole or not at all, read back with the place of whatever is wrong in
them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.records import EvalReport, KernelReport

_KINDS: dict[str, type[KernelReport] | type[EvalReport]] = {"kernels": KernelReport, "eval": EvalReport}
_MAX_PROBLEMS = 3  # of one file, in one message
_decode = json.JSONDecoder().raw_decode


def dumps(report: KernelReport | EvalReport) -> str:
    """Indented JSON with a newline at its end; fields by their published names."""
    return report.model_dump_json(by_alias=True, indent=2) + "\n"


def write(report: KernelReport | EvalReport, path: str | Path) -> None:
    """To a file, made with its folders and replaced in one step, or to stdout for `-`. UsageError if it
    cannot be."""
    text = dumps(report)
    if str(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as part:
            part.write(text)
        os.chmod(part.name, 0o666 & ~_umask())  # a temporary file is private; a report is not
        os.replace(part.name, target)
    except OSError as error:
        raise UsageError(f"--json {path}: {error.strerror or error}") from error


def load(path: str | Path) -> KernelReport | EvalReport:
    """Read a report of either kind. FileFormatError with the line for whatever is no report."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(path, "", getattr(error, "strerror", None) or str(error)) from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(path, f"line {error.lineno}", f"not JSON: {error.msg}") from None
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in _KINDS:
        raise FileFormatError(
            path, "line 1", f"not a report of fk: 'kind' must be 'kernels' or 'eval', not {kind!r}"
        )
    try:
        return _KINDS[kind].model_validate_json(text)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        line = line_of(text, problems[0]["loc"])
        told = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems[:_MAX_PROBLEMS]]
        more = f" (and {len(problems) - _MAX_PROBLEMS} more)" if len(problems) > _MAX_PROBLEMS else ""
        raise FileFormatError(path, f"line {line}", "; ".join(told) + more) from None


def load_eval(path: str | Path) -> EvalReport:
    """Read a report of `fk eval`; FileFormatError for the other kind."""
    report = load(path)
    if not isinstance(report, EvalReport):
        raise FileFormatError(path, "line 1", "a report of `fk kernels`; MacroEval needs one of `fk eval`")
    return report


def load_kernels(path: str | Path) -> KernelReport:
    """Read a report of `fk kernels`; FileFormatError for the other kind."""
    report = load(path)
    if not isinstance(report, KernelReport):
        raise FileFormatError(path, "line 1", "a report of `fk eval`, not of `fk kernels`")
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


def _umask() -> int:
    """The process's umask can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
