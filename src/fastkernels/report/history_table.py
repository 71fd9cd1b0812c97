"""`fk history` as tables: versions with their parents and results, the best of each task, trends, and what
changed between two versions."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from fastkernels.report import history
from fastkernels.report.history import Of, Result, Version
from fastkernels.report.layout import Column, heading, legend, number, table

_WIDTH = 30  # of a drawn band
_SPEEDUP = Column(
    "speed-up", "geometric mean over the cases, weighted by calls, beside the baseline of its time"
)
_BAND = Column(
    "band", "how far it may be off: its interval, and what two processes with the same code differ by"
)
_VERSIONS = (
    Column("version", "hash of all files of the candidate", right=False),
    Column("parent", "the version that was judged under this name before", right=False),
    Column("judged", "when last", right=False),
    Column("passed", "cases that passed, of those judged"),
    _SPEEDUP,
    _BAND,
    Column("to parent", "change over the cases that both have timed: ▲ ▼ beyond both bands, = not"),
)
_BEST = (
    Column("of", "", right=False),
    Column("best", "fastest of the versions with the most cases timed and none failed", right=False),
    Column("cases", ""),
    _SPEEDUP,
    _BAND,
    Column("judged", "", right=False),
)
_TREND = (
    Column("judged", "", right=False),
    Column("version", "", right=False),
    Column("passed", ""),
    _SPEEDUP,
    _BAND,
    Column("from least to greatest", "the band, drawn", right=False),
)
_CASES = (
    Column("case", "", right=False),
    Column("before", ""),
    Column("after", ""),
    Column("change", "▲ ▼ beyond both bands, = not"),
)


def lineage(found: Sequence[Version]) -> list[RenderableType]:
    lines: dict[tuple[str, Of], list[list[str]]] = {}
    for version in found:
        for of, result in version.results.items():
            lines.setdefault((version.name, of), []).append(_of_version(version, of, result))
    parts: list[RenderableType] = []
    for key, rows in lines.items():
        parts += [_title(*key), table(_VERSIONS, rows)]
    every = [row for rows in lines.values() for row in rows]
    return [*parts, *best(found), Text(), *legend(_VERSIONS, every)]


def _of_version(version: Version, of: Of, result: Result) -> list[str]:
    parent = version.parent
    before = parent.results.get(of) if parent else None
    return [
        version.short,
        parent.short if parent else "",
        _when(result),
        _passed(result),
        number(result.speedup, ".3f"),
        _band(result),
        _change(history.change(before, result)) if before else "",
    ]


def best(found: Sequence[Version]) -> list[RenderableType]:
    """A table for each device and size."""
    tables: dict[tuple[str, str], list[list[str]]] = {}
    for of, version in history.best(found).items():
        result = version.results[of]
        row = [of.what, version.key, str(len(result.measured)), number(result.speedup, ".3f"), _band(result)]
        tables.setdefault((of.device, of.size), []).append([*row, _when(result)])
    return [
        part
        for (device, size), rows in tables.items()
        for part in (heading(f"Best so far on {device}, {size}"), table(_BEST, rows))
    ]


def _title(name: str, of: Of) -> RenderableType:
    return heading(f"{name}: {of.what}, {of.size}, {of.device}")


def trend(found: Sequence[Version]) -> list[RenderableType]:
    """Every run, oldest first."""
    lines: dict[tuple[str, Of], list[tuple[Version, Result]]] = {}
    for version in found:
        for _, results in version.runs:
            for of, result in results.items():
                lines.setdefault((version.name, of), []).append((version, result))
    parts: list[RenderableType] = []
    rows: list[list[str]] = []
    for key, seen in lines.items():
        seen.sort(key=lambda pair: pair[1].at)
        ends = [end for _, result in seen for end in _ends(result)]
        rows = [
            [
                _when(result),
                version.short,
                _passed(result),
                number(result.speedup, ".3f"),
                _band(result),
                _drawn(result, min(ends), max(ends)) if ends else "",
            ]
            for version, result in seen
        ]
        parts += [_title(*key), table(_TREND, rows)]
    return [*parts, Text(), *legend(_TREND, rows)]


def diff(
    before: Version, after: Version, texts: tuple[Mapping[str, str], Mapping[str, str]]
) -> list[RenderableType]:
    """`texts`: the files of both."""
    parts: list[RenderableType] = [heading(f"{before.key} -> {after.key}")]
    both = [of for of in before.results if of in after.results]
    for of in both:
        rows = _by_case(before.results[of], after.results[of])
        parts += [_title(after.name, of), table(_CASES, rows), Text(), *legend(_CASES, rows)]
    if not both:
        parts.append(Text("No task or model was judged with both."))
    return [*parts, heading("Files"), *_files(before, after, texts)]


def _by_case(old: Result, new: Result) -> list[list[str]]:
    rows = []
    for case in sorted((old.passed | old.failed) & (new.passed | new.failed)):
        timed = case in old.measured and case in new.measured
        moved = history.change(_alone(old, case), _alone(new, case)) if timed else None
        rows.append([case, _case(old, case), _case(new, case), _change(moved)])
    return rows


def _alone(result: Result, case: str) -> Result:
    return Result(result.at, {case: result.measured[case]})


def _case(result: Result, case: str) -> str:
    if case in result.measured:
        return f"{result.measured[case].speedup:.3f}"
    return "passed" if case in result.passed else "failed"


def _files(
    before: Version, after: Version, texts: tuple[Mapping[str, str], Mapping[str, str]]
) -> list[RenderableType]:
    old, new = (_below(text, version.name) for text, version in zip(texts, (before, after), strict=True))
    lines: list[RenderableType] = []
    for path in sorted({*old, *new}):
        sides = [side.get(path, "").splitlines() for side in (old, new)]
        names = (f"{before.key}/{path}", f"{after.key}/{path}")
        for line in difflib.unified_diff(sides[0], sides[1], *names, lineterm=""):
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[0], "")
            lines.append(Text(line, style=style))
    same = "The task files are the same: what differs lies beside them, and is not stored."
    return lines or [Text(same)]


def _below(texts: Mapping[str, str], name: str) -> dict[str, str]:
    """The files of one candidate of a run, by their path in it."""
    folders = {path.partition("/")[0] for path in texts}
    mine = name if name in folders else (folders.pop() if len(folders) == 1 else name)
    return {path.partition("/")[2]: text for path, text in texts.items() if path.startswith(f"{mine}/")}


def facts(found: Sequence[Version], notes: Sequence[str]) -> dict[str, Any]:
    """What `--json` writes."""

    def plain(of: Of, result: Result) -> dict[str, Any]:
        return {
            **of._asdict(),
            "at": result.at,
            "speedup": result.speedup,
            "band": result.band,
            "passed": sorted(result.passed),
            "failed": sorted(result.failed),
            "cases": {case: one.speedup for case, one in result.measured.items()},
        }

    return {
        "kind": "history",
        "versions": [
            {
                "candidate": version.name,
                "sha256": version.sha256,
                "parent": version.parent.sha256 if version.parent else None,
                "runs": [run.id for run, _ in version.runs],
                "results": [plain(*pair) for pair in version.results.items()],
            }
            for version in found
        ],
        "best": [
            {**plain(of, version.results[of]), "candidate": version.name, "sha256": version.sha256}
            for of, version in history.best(found).items()
        ],
        "notes": [*notes],
    }


def _when(result: Result) -> str:
    return result.at[:16].replace("T", " ")


def _passed(result: Result) -> str:
    return f"{len(result.passed)}/{len(result.passed | result.failed)}"


def _band(result: Result) -> str:
    return "" if result.band is None else f"± {100 * result.band:.1f} %"


def _change(found: history.Change | None) -> str:
    return "" if found is None else f"{found.mark} {found.ratio:.3f}"


def _ends(result: Result) -> tuple[float, ...]:
    if result.speedup is None or result.band is None:
        return ()
    return result.speedup / (1 + result.band), result.speedup * (1 + result.band)


def _drawn(result: Result, least: float, greatest: float) -> str:
    """`     |--o--|   `"""
    if not (ends := _ends(result)):
        return ""
    speedup, (low, high) = result.speedup, ends
    assert speedup is not None

    def at(value: float) -> int:
        return round((_WIDTH - 1) * (value - least) / (greatest - least)) if greatest > least else 0

    line = [" "] * _WIDTH
    line[at(low) : at(high) + 1] = "-" * (at(high) - at(low) + 1)
    line[at(low)] = line[at(high)] = "|"
    line[at(speedup)] = "o"
    return "".join(line)
