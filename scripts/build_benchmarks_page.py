"""Write docs/benchmarks.md, and the README's table of architectures, from the reports in benchmarks/: nothing
of either is typed by hand.

python scripts/build_benchmarks_page.py            writes both
python scripts/build_benchmarks_page.py --check    exit 1 if what is committed is stale
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fastkernels import registry
from fastkernels.errors import FileFormatError
from fastkernels.judge.verdict import too_noisy
from fastkernels.measure.stats import geomean
from fastkernels.records import Environment, EvalReport, KernelReport, KernelRow
from fastkernels.report import evidence
from fastkernels.report.json import load, text_of
from fastkernels.report.layout import CPU_WARNING

ROOT = Path(__file__).resolve().parent.parent
REPORTS, PAGE, README = ROOT / "benchmarks", ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
MARKS = ("<!-- architectures -->\n", "<!-- /architectures -->\n")
HEAD = """# Benchmarks

What lies in `benchmarks/`, one line for each report. `scripts/build_benchmarks_page.py` writes this page from
the reports; edit those. A speed-up is baseline / candidate, or reference / ours: above 1 the second is the
faster one. A figure belongs to the device that heads its table.
"""
EMPTY = "\nNo report yet: put the JSON of `fk kernels --json` and `fk eval --json` there.\n"
COLUMNS = ("report", "made", "revision", "result")
LISTED_S = 4.0  # groups of tests that take less are one row
_KINDS_OF_FK = ("kernels", "eval")
_NO_RESULTS = ("kind", "start_s", "cut_off", "size", "left", "names", "shown")  # facts that are no outcome


class Show(NamedTuple):
    """What a program of benchmarks/ wrote: facts with names, and tables."""

    environment: Environment
    facts: dict[str, Any]
    complete: bool = True


Report = KernelReport | EvalReport | Show


def page(reports: dict[str, Report]) -> str:
    """The whole page: a table for each device, a row for each report. `reports`: path below benchmarks/."""
    text = [HEAD] if reports else [HEAD, EMPTY]
    ordered = sorted(reports.items(), key=lambda item: (item[1].environment.device, item[0]))
    for device, chapter in groupby(ordered, key=lambda item: item[1].environment.device):
        rows = list(chapter)
        label = f"\n**{CPU_WARNING}.**\n" if rows[0][1].environment.device_type == "cpu" else ""
        text += [f"\n## {device}\n{label}", _table(COLUMNS, [_row(name, report) for name, report in rows])]
    text += [_tests(one) for one in reports.values() if isinstance(one, Show)]
    return "".join(text)


def _tests(show: Show) -> str:
    """What each group of tests takes, where the report is of that."""
    if show.facts["kind"] != "test-seconds":
        return ""
    facts, columns = show.facts, ("group", "tests", "s", "CPU s", "s at 48 architectures")
    cells = ("tests", "share_s", "cpu_s", "share_s_at_48")
    groups = [row for row in facts["rows"] if row["share_s"] >= LISTED_S]
    small = [row for row in facts["rows"] if row["share_s"] < LISTED_S]
    others = {"group": f"{len(small)} others", **{cell: sum(row[cell] for row in small) for cell in cells}}
    rows = [
        [row["group"], str(row["tests"]), *(f"{row[cell]:.1f}" for cell in cells[1:])]
        for row in [*groups, others]
    ]
    return (
        f"\n## What `make test` takes\n\n{facts['minutes']:.1f} minutes on {show.environment.device}; "
        f"{facts['minutes_at_48']:.1f} with 48 architectures, if what is generated grows. A group's "
        f"seconds are its share of the whole. {_table(columns, rows)}"
    )


def _row(name: str, report: Report) -> tuple[str, ...]:
    environment: Environment = report.environment
    partial = [] if report.complete else ["interrupted"]
    revision = f"`{environment.git_revision[:12]}`" if environment.git_revision else ""
    return name, environment.started_at[:10], revision, "; ".join([*_result(report), *partial])


def read(folder: Path) -> dict[str, Report]:
    """Every JSON report below `folder`; FileFormatError for a file that is none."""
    return {path.relative_to(folder).as_posix(): _read(path) for path in evidence.files(folder)}


def _read(path: Path) -> Report:
    try:
        data = json.loads(text_of(path))
    except json.JSONDecodeError:
        data = None
    if not isinstance(data, dict) or data.get("kind") in (None, *_KINDS_OF_FK):
        return load(path)
    # A comparison of routing was made from what a capture holds, on the capture's machine.
    environment = data.pop("environment", None) or data.get("capture", {}).get("environment")
    try:
        environment = Environment.model_validate(environment)
    except ValidationError as error:
        raise FileFormatError(path, "environment", str(error)) from None
    return Show(environment, data)


def _result(report: Report) -> Iterable[str]:
    if isinstance(report, Show):
        return _facts(report)
    return _eval(report) if isinstance(report, EvalReport) else _kernels(report)


def _facts(show: Show) -> Iterable[str]:
    """Single facts, named groups of numbers, and how long each list of the report is."""
    for name, value in show.facts.items():
        if name in _NO_RESULTS or value is None:
            continue
        if isinstance(value, list):
            yield f"{len(value)} {name}"
        elif isinstance(value, dict):
            numbers = {key: one for key, one in value.items() if isinstance(one, (int, float))}
            if numbers:
                yield f"{name}: {', '.join(f'{key} {_cell(one)}' for key, one in numbers.items())}"
        else:
            yield f"{name} {_cell(value)}"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _kernels(report: KernelReport) -> Iterable[str]:
    """Passed trials, then the timed ratios of each candidate under each contract."""
    yield f"{report.summary.passed} of {report.summary.rows} trials passed"
    timed = sorted((row for row in report.rows if _has_ratio(row)), key=_side)
    for (candidate, contract), rows in groupby(timed, key=_side):
        known = [(row.speedup, row.calls) for row in rows if row.speedup is not None]
        speeds, weights = [speed for speed, _ in known], [calls for _, calls in known]
        span = f"{min(speeds):.3f} .. {max(speeds):.3f}"
        yield f"{candidate}, {contract}: {geomean(speeds, weights):.3f} ({span}, {len(known)} cases)"


def _side(row: KernelRow) -> tuple[str, str]:
    return row.candidate, row.contract


def _has_ratio(row: KernelRow) -> bool:
    """By today's rules: a report may be older than they are."""
    return row.speedup is not None and not too_noisy(row.contract, row.noise_pct or 0.0)


def _eval(report: EvalReport) -> Iterable[str]:
    """MacroEval, then each model with its workloads' ratios."""
    yield ", ".join(report.candidates) or "self-test"
    if (score := report.macroeval) is not None:
        yield f"MacroEval {score.score:.4f}"
    for model in report.models:
        ratios = ", ".join(f"{w.name} {w.ratio:.3f}" for w in model.workloads)
        valid = "valid" if model.valid else "not valid"
        yield f"{model.model} {model.config} {valid}, correctness {model.correctness:.4f}, {ratios}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n" + "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def architectures(reports: dict[str, Report]) -> str:
    """The README's table: how well each architecture is known, and how fast it is beside its reference."""
    beside: dict[str, list[str]] = {}
    for report in reports.values():
        if isinstance(report, Show) and report.facts.get("ratios") and report.facts.get("size") == "full":
            ratios = sorted(report.facts["ratios"].values())
            figures = dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1]))
            told = f"{' to '.join(figures)} times {report.facts['reference']}"
            where = [report.environment.device]
            where += [f"{key} {value}" for key, value in (report.facts.get("changes") or {}).items()]
            beside.setdefault(report.facts["architecture"], []).append(f"{told} ({', '.join(where)})")
    rows = [
        (
            f"`{entry.id}`",
            entry.name,
            entry.category,
            evidence.evidence(entry).level,
            "; ".join(beside.get(entry.id, ())),
        )
        for entry in registry.architectures()
    ]
    return _table(("id", "model", "category", "evidence", "speed beside its reference, by workload"), rows)


def readme(text: str, table: str) -> str:
    """The README with this table between its marks."""
    above, rest = text.split(MARKS[0])
    return above + MARKS[0] + table + MARKS[1] + rest.split(MARKS[1])[1]


def written(reports: dict[str, Report]) -> dict[Path, str]:
    """What each file is to hold."""
    table = architectures(reports)
    return {PAGE: page(reports), README: readme(README.read_text(encoding="utf-8"), table)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    is_check = parser.parse_args().check
    for file, text in written(read(REPORTS)).items():
        if not is_check:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{file} is stale: run python scripts/build_benchmarks_page.py")


if __name__ == "__main__":
    main()
