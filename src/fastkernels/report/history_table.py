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
    Column("of", "", right=False),
    Column("size", "", right=False),
    Column("device", "", right=False),
    Column("passed", "cases that passed, of those judged"),
    _SPEEDUP,
    _BAND,
    Column(
        "to parent",
        "change of the speed-up over the cases that both have timed: ▲ ▼ beyond both bands, = not",
    ),
)
_BEST = (
    Column("of", "", right=False),
    Column("size", "", right=False),
    Column("device", "", right=False),
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
    Column("of", "", right=False),
    Column("size", "", right=False),
    Column("device", "", right=False),
    Column("case", "", right=False),
    Column("before", ""),
    Column("after", ""),
    Column("change", "▲ ▼ beyond both bands, = not"),
)


def lineage(found: Sequence[Version]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    rows: list[list[str | Text]] = []
    for name in dict.fromkeys(version.name for version in found):
        rows = [row for version in found if version.name == name for row in _of_version(version)]
        parts += [heading(f"Candidate {name}"), table(_VERSIONS, rows)]
    return [*parts, *best(found), Text(), *legend(_VERSIONS, rows)]


def _of_version(version: Version) -> list[list[str | Text]]:
    parent = version.parent
    rows: list[list[str | Text]] = []
    for of, result in version.results.items():
        before = parent.results.get(of) if parent else None
        rows.append(
            [
                version.short,
                parent.short if parent else "",
                _when(result),
                *of,
                _passed(result),
                number(result.speedup, ".3f"),
                _band(result),
                _change(history.change(before, result)) if before else "",
            ]
        )
    return rows


def best(found: Sequence[Version]) -> list[RenderableType]:
    rows = []
    for of, version in history.best(found).items():
        result = version.results[of]
        mean = number(result.speedup, ".3f")
        rows.append([*of, version.key, str(len(result.measured)), mean, _band(result), _when(result)])
    return [heading("Best so far"), table(_BEST, rows)] if rows else []


def trend(found: Sequence[Version]) -> list[RenderableType]:
    """Every run, oldest first."""
    lines: dict[tuple[str, Of], list[tuple[Version, Result]]] = {}
    for version in found:
        for _, results in version.runs:
            for of, result in results.items():
                lines.setdefault((version.name, of), []).append((version, result))
    parts: list[RenderableType] = []
    rows: list[list[str]] = []
    for (name, of), seen in lines.items():
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
        parts += [heading(f"{name}  {of.what}  {of.size}  {of.device}"), table(_TREND, rows)]
    return [*parts, Text(), *legend(_TREND, rows)]


def diff(
    before: Version, after: Version, texts: tuple[Mapping[str, str], Mapping[str, str]]
) -> list[RenderableType]:
    """`texts`: the files of both."""
    rows: list[list[str | Text]] = []
    for of, old in before.results.items():
        new = after.results.get(of)
        for case in sorted({*old.passed, *old.failed} & ({*new.passed, *new.failed} if new else set())):
            assert new is not None
            sides = [_case(result, case) for result in (old, new)]
            both = case in old.measured and case in new.measured
            moved = history.change(_alone(old, case), _alone(new, case)) if both else None
            rows.append([*of, case, *sides, _change(moved)])
    parts: list[RenderableType] = [heading(f"{before.key} -> {after.key}")]
    none = "No case was judged with both."
    parts += [table(_CASES, rows), Text(), *legend(_CASES, rows)] if rows else [Text(none)]
    return [*parts, heading("Files"), *_files(before, after, texts)]


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
