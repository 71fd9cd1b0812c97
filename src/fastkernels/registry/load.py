"""Read and validate the registry's files. A corrupt file is a FileFormatError with the file and the line."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from fastkernels.errors import FileFormatError

T = TypeVar("T")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster where it is compiled in


def read_yaml(path: Path, kind: type[T] | Any) -> T:
    """The file as a validated `kind`: a record, or a `list[Record]` / `dict[str, Record]`.

    Raises FileFormatError with the line of a syntax error, of the first value that does not fit the schema,
    or of a key that is given twice (YAML would silently keep the last).
    """
    text = _text(path)
    try:
        root = yaml.compose(text, Loader=_LOADER)
        data = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise FileFormatError(path, f"line {mark.line + 1}" if mark else "", problem) from None
    for node in _repeated_keys(root):
        raise FileFormatError(path, f"line {node.start_mark.line + 1}", f"key '{node.value}' is given twice")
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise FileFormatError(path, f"line {_line(root, first['loc'])}", _explain(first)) from None


def read_jsonl(path: Path, kind: type[T], whole: Callable[[Any], Any]) -> dict[int, T]:
    """By its line, a validated record of what `whole` makes of each that is not empty; none of None. `whole`
    raises ValueError where it can make nothing of a line."""
    with _no_collection():
        return _records(path, kind, whole)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Thousands of records are made and none is garbage: the collector would take a third of the time to look
    through those that are there, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _records(path: Path, kind: type[T], whole: Callable[[Any], Any]) -> dict[int, T]:
    adapter = TypeAdapter(kind)
    decode = json.JSONDecoder().raw_decode  # json.loads takes three times as long for a short line
    records = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not (line := line.strip()):
            continue
        try:
            value, end = decode(line)
            if end < len(line):
                raise json.JSONDecodeError("Extra data", line, end)
            if (found := whole(value)) is not None:
                records[number] = adapter.validate_python(found)
        except json.JSONDecodeError as error:
            raise FileFormatError(path, f"line {number}", f"column {error.colno}: {error.msg}") from None
        except ValidationError as error:
            raise FileFormatError(path, f"line {number}", _explain(error.errors()[0])) from None
        except ValueError as error:
            raise FileFormatError(path, f"line {number}", str(error)) from None
    return records


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise FileFormatError(path, f"line {error.lineno}", f"not JSON: {error.msg}") from None
    except RecursionError:
        raise FileFormatError(path, "", "nested too deeply to be read") from None
    if not isinstance(content, dict):
        problem = f"expected a JSON object of keys and values, and this is a {type(content).__name__}"
        raise FileFormatError(path, "line 1", problem)
    return content


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(path, "", error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise FileFormatError(path, f"line {line}", "not UTF-8 text") from None


def _explain(error: Any) -> str:
    """`configs.tiny.size: Input should be 'tiny' or 'full', got 'small'`"""
    where = ".".join(str(part) for part in error["loc"])
    got = "" if error["type"] == "missing" else f", got {error['input']!r:.60}"
    return f"{where}: {error['msg']}{got}" if where else f"{error['msg']}{got}"


def _line(node: yaml.Node | None, loc: Sequence[Any]) -> int:
    """Line of the deepest node on the way to `loc` (a missing key has none of its own)."""
    if node is None:
        return 1
    line = node.start_mark.line + 1
    for part in loc:
        child = _child(node, part)
        if child is None:
            continue  # a step of the schema (union member, `[key]`), not of the document
        key, node = child
        line = key.start_mark.line + 1
    return line


def _child(node: yaml.Node, part: Any) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _repeated_keys(node: yaml.Node | None) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                yield key
            seen.add(key.value)
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(value)
