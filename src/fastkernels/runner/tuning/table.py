"""From times to a device's table: how far its choices are from the best, and a table that is nearer.

    summary = summarize(rows, ...)                        of the table that was in force
    for proposal in proposals(report): ...                a kernel whose entry should be another
    write({proposal.kernel: proposal.choices}, path, report, device)

A choice is good if it is within BOUND of the best implementation whose results are not too different. An
entry is chosen by what a table can tell calls apart by: the kernel's size, the dtype of the first tensor, and
which implementations take the call. It is the one that is good in the most cases, and of these the fastest,
with few breaks: a break must make at least one more case good. A kernel whose choices are all good keeps
its entry, as does one of which the choice itself has no times. Where cases are left, sizes below all that
were timed keep their choice.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fastkernels.errors import FileFormatError, UsageError
from fastkernels.kernels import registered
from fastkernels.records import Behind, Contract, TunedRow, TuneReport, TuneSummary, Untimed
from fastkernels.registry.schema import Choice

BOUND = 1.03  # of the best's time
WANTED = 0.99  # of the cases
MOST_APART = 0.02  # results that differ by more are not taken for the same: fk kernels says which are wrong
_BREAK = 0.5  # what a size at which the choice changes costs, where a case beyond the bound costs 1
_OTHER = 0.05  # what it costs to begin with another implementation than before
_UNKNOWN = 10.0  # ratio of what would run and has no time
_MOST_TRIED, _MOST_IN_ORDER = 5, 3  # implementations of a kernel, and in the order of one range of sizes

Order = tuple[str, ...]


@dataclass(frozen=True)
class Use:
    """A kernel in a case. `times` of what may be chosen, `unknown`: takes the call and may not."""

    task: str
    case: str
    contract: Contract
    size: int
    dtype: str
    chosen: str
    times: Mapping[str, float]
    unknown: frozenset[str]

    @property
    def best(self) -> str:
        return min(self.times, key=self.times.__getitem__)

    def ratio(self, name: str) -> float:
        """To the best time."""
        return self.times[name] / self.times[self.best] if name in self.times else _UNKNOWN

    def is_good(self, name: str) -> bool:
        return self.ratio(name) <= BOUND

    @property
    def good(self) -> set[str]:
        return set(filter(self.is_good, self.times))

    def first(self, order: Iterable[str]) -> str:
        """What runs of an order of preference."""
        return next((name for name in order if name in self.times or name in self.unknown), "reference")

    def behind(self, kernel: str, name: str, why: str = "") -> Behind:
        return Behind(
            task=self.task, case=self.case, contract=self.contract, kernel=kernel, chosen=name,
            best=self.best, ratio=self.ratio(name), why=why,
        )  # fmt: skip


@dataclass(frozen=True)
class Proposal:
    """`choices`: none where the kernel keeps its entry. Exceptions before and after; `cases` decide."""

    kernel: str
    cases: int
    choices: tuple[Choice, ...]
    before: tuple[Behind, ...]
    after: tuple[Behind, ...]


def uses(rows: Iterable[TunedRow], untimed: Iterable[Untimed] = ()) -> dict[str, list[Use]]:
    """By kernel, the cases in which the table's choice has a time, once for each contract."""
    found: dict[tuple[str, str, str, Contract], list[TunedRow]] = defaultdict(list)
    for row in rows:
        found[row.kernel, row.task, row.case, row.contract].append(row)
    without: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for one in untimed:
        if one.kernel is not None and one.implementation is not None:
            without[one.kernel, one.task, one.case].add(one.implementation)
    by_kernel: dict[str, list[Use]] = defaultdict(list)
    for (kernel, task, case, contract), mine in found.items():
        chosen = next((row.implementation for row in mine if row.chosen), None)
        if chosen is None:
            continue
        times = {r.implementation: r.us for r in mine if r.chosen or r.difference <= MOST_APART}
        unknown = frozenset(without[kernel, task, case] | {r.implementation for r in mine}) - times.keys()
        by_kernel[kernel].append(
            Use(task, case, contract, mine[0].size, mine[0].dtype, chosen, times, unknown)
        )
    return dict(sorted(by_kernel.items()))


def unchosen(report: TuneReport) -> list[tuple[str, str, str]]:
    """(kernel, task, case) in which what the table chooses has no time under any contract."""
    with_time = {(row.kernel, row.task, row.case) for row in report.rows if row.chosen}
    tried = {(row.kernel, row.task, row.case) for row in report.rows}
    tried |= {(one.kernel, one.task, one.case) for one in report.untimed if one.kernel is not None}
    return sorted(tried - with_time)


def summarize(rows: Sequence[TunedRow], planned: int, left: dict[str, int], wall_s: float) -> TuneSummary:
    """Of the table that was in force."""
    compared = [
        (kernel, use) for kernel, several in uses(rows).items() for use in several if len(use.times) > 1
    ]
    behind = [use.behind(kernel, use.chosen) for kernel, use in compared if not use.is_good(use.chosen)]
    return TuneSummary(
        cases=len(compared),
        bound=BOUND,
        share=1 - len(behind) / len(compared) if compared else None,
        exceptions=tuple(sorted(behind, key=lambda one: -one.ratio)),
        timed=len({(row.task, row.case) for row in rows}),
        planned=planned,
        left=left,
        wall_s=wall_s,
    )


def proposals(report: TuneReport) -> list[Proposal]:
    """Of every kernel with cases that decide. UsageError for a report without any."""
    found = uses(report.rows, report.untimed)
    if not found:
        raise UsageError("The report has no case in which the table's choice was timed: nothing is decided")
    left = bool(report.summary.left)
    return [_proposal(kernel, several, left) for kernel, several in found.items()]


def _proposal(kernel: str, several: list[Use], left: bool) -> Proposal:
    before = tuple(use.behind(kernel, use.chosen) for use in several if not use.is_good(use.chosen))
    if not before:
        return Proposal(kernel, len(several), (), (), ())
    choices = _choices(kernel, several)
    least, usual = min((use.size, use.chosen) for use in several)
    if left and least > 1 and choices[0].use != usual:
        choices = (Choice(use=usual, max_rows=least - 1), *choices)
    after = tuple(
        use.behind(kernel, name, _inexpressible(use, several))
        for use in several
        if not use.is_good(name := picked(choices, use))
    )
    if len(after) >= len(before):
        told = tuple(use.behind(kernel, use.chosen, _inexpressible(use, several)) for use in several)
        told = tuple(one for one in told if one.ratio > BOUND)
        return Proposal(kernel, len(several), (), before, told)
    return Proposal(kernel, len(several), choices, before, after)


def picked(choices: Iterable[Choice], use: Use) -> str:
    """What a table with these choices runs (kernels/base.py)."""
    return use.first(
        choice.use
        for choice in choices
        if (choice.max_rows is None or use.size <= choice.max_rows)
        and (choice.dtype is None or use.dtype == choice.dtype)
    )


def _inexpressible(use: Use, several: Sequence[Use]) -> str:
    """Which case a table cannot tell from this one, though no implementation is good in both."""
    for other in several:
        alike = (other.size, other.dtype) == (use.size, use.dtype)
        if alike and other.times.keys() == use.times.keys() and not (other.good & use.good):
            return f"of one size and dtype with {other.case}, where {other.best} is best: needs another key"
    return ""


# ---------------------------------------------------------------- the best entry


def _choices(kernel: str, several: Sequence[Use]) -> tuple[Choice, ...]:
    usual = Counter(use.chosen for use in several).most_common(1)[0][0]
    cost, ranges = _ranges(several, usual)
    by_dtype: dict[str, list[Use]] = defaultdict(list)
    for use in several:
        by_dtype[use.dtype].append(use)
    found = [Choice(use=name, max_rows=most) for most, order in ranges for name in order]
    if len(by_dtype) > 1:
        main = max(by_dtype, key=lambda dtype: len(by_dtype[dtype]))
        each = {dtype: _ranges(own, usual) for dtype, own in by_dtype.items()}
        if sum(cost for cost, _ in each.values()) + _BREAK * (len(each) - 1) < cost:
            found = [
                Choice(use=name, max_rows=most, dtype=None if dtype == main else dtype)  # type: ignore[arg-type]
                for dtype in sorted(each, key=lambda one: one == main)
                for most, order in each[dtype][1]
                for name in order
            ]
    return (*found, *_others(kernel, found, several))


def _others(kernel: str, found: Sequence[Choice], several: Sequence[Use]) -> list[Choice]:
    """Behind those without a condition the others, the faster ones first and then those without a time: for
    calls that nobody timed, and for machines on which the best is not installed."""
    whole = {choice.use for choice in found if choice.max_rows is None and choice.dtype is None}
    if "reference" in whole:  # which takes every call, everywhere
        return []
    logs: dict[str, list[float]] = defaultdict(list)
    for use in several:
        for name in use.times.keys() - whole - {"reference"}:
            logs[name].append(math.log(use.ratio(name)))
    timed = sorted(logs, key=lambda name: sum(logs[name]) / len(logs[name]))
    every = registered[kernel].names if kernel in registered else ()
    untimed = [name for name in every if name not in {*timed, *whole, "reference"}]
    return [Choice(use=name) for name in (*timed, *untimed)]


def _ranges(several: Sequence[Use], usual: str) -> tuple[float, list[tuple[int | None, Order]]]:
    """The cheapest cut of the sizes into ranges with an order each, [(largest size, order)]; the last holds
    for all sizes. By dynamic programming over the sizes: `least[n]` is the cost of the first n."""
    ordered = sorted(several, key=lambda use: use.size)
    orders = _orders(ordered)
    cost_OU = np.array([[_cost(use, order) for use in ordered] for order in orders])
    sums_OU = np.concatenate([np.zeros((len(orders), 1)), np.cumsum(cost_OU, axis=1)], axis=1)
    fixed_O = np.array([_BREAK + 0.01 * len(order) + _OTHER * (order[0] != usual) for order in orders])
    sizes = sorted({use.size for use in ordered})
    ends = [0, *(sum(use.size <= size for use in ordered) for size in sizes)]
    least, from_, by = [0.0], [0], [0]
    for n in range(1, len(ends)):
        found = []
        for begin in range(n):
            own_O = sums_OU[:, ends[n]] - sums_OU[:, ends[begin]] + fixed_O
            order = int(own_O.argmin())
            found.append((least[begin] + float(own_O[order]), begin, order))
        cost, begin, order = min(found)
        least.append(cost)
        from_.append(begin)
        by.append(order)
    ranges: list[tuple[int | None, Order]] = []
    n = len(sizes)
    while n:
        ranges.append((None if not ranges else sizes[n - 1], orders[by[n]]))
        n = from_[n]
    return least[-1], ranges[::-1]


def _orders(several: Sequence[Use]) -> list[Order]:
    """Of implementations that are good somewhere, the most often good ones first."""
    wins = Counter(name for use in several for name in sorted(use.good))
    tried = [name for name, _ in wins.most_common(_MOST_TRIED)]
    lengths = range(1, min(_MOST_IN_ORDER, len(tried)) + 1)
    return [order for length in lengths for order in permutations(tried, length)]


def _cost(use: Use, order: Order) -> float:
    ratio = use.ratio(use.first(order))
    return (ratio > BOUND) + 2 * math.log(ratio)


# ---------------------------------------------------------------- files


def entries(path: Path) -> dict[str, Any]:
    """Kernel -> the entry that a device's file has for it. FileFormatError."""
    if not path.is_file():
        return {}
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, AttributeError) as error:
        raise FileFormatError(path, "implementations", str(error)) from error


def write(table: Mapping[str, Sequence[Choice]], path: Path, report: TuneReport, device: Path) -> None:
    """Put what is decided into a device's file, each entry in place of the one that it has for the kernel;
    everything else stays as it is. A new file begins as a copy of the `device`'s own, where there is one.
    FileFormatError where an entry would be lost, UsageError where the file is another device's."""
    environment = report.environment
    if path.is_file() and path != device:
        named = {environment.device, _name(device)}
        if (theirs := _name(path)) not in named:
            raise UsageError(
                f"--out {path}: is the table of {theirs}, the report is of {environment.device}. "
                "Name another file"
            )
    old = next((file for file in (path, device) if file.is_file()), None)
    text = old.read_text(encoding="utf-8") if old else f"name: {environment.device}\n"
    how = (
        f"fk tune on {environment.started_at[:10]}, torch {environment.torch}, triton {environment.triton}, "
        f"driver {environment.driver}"
    )
    decided = {kernel: f"[{', '.join(map(_told, choices))}]" for kernel, choices in table.items() if choices}
    new = _with_entries(text, {kernel: f"{kernel}: {entry}  # {how}" for kernel, entry in decided.items()})
    wanted = {kernel: yaml.safe_load(entry) for kernel, entry in decided.items()}
    if _parsed(new) != {**(entries(old) if old else {}), **wanted}:
        problem = "write the entry of each kernel on a line of its own, so that one can be replaced"
        raise FileFormatError(old or path, "implementations", problem)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}. Name another file") from error


def _name(path: Path) -> str | None:
    """The device of a table; None where it names none."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(r"^name:[ \t]*(.+?)[ \t]*$", text, re.MULTILINE)
    return found[1] if found else None


def _parsed(text: str) -> dict[str, Any]:
    return dict((yaml.safe_load(text) or {}).get("implementations") or {})


def _told(choice: Choice) -> str:
    facts = [f"{name}: {value}" for name, value in choice.model_dump(exclude_none=True).items()]
    return choice.use if len(facts) == 1 else f"{{{', '.join(facts)}}}"


def _with_entries(text: str, lines: Mapping[str, str]) -> str:
    """The file with each kernel's line in its block `implementations`, in place of the kernel's entry there,
    on however many lines."""
    text = text.rstrip("\n") + "\n"
    block = re.search(r"^implementations:[ \t]*(?:#.*)?\n((?:[ \t]+.*\n|\n)*)", text, re.MULTILINE)
    if block is None:
        if not lines or _parsed(text):
            return text  # all on one line: `write` refuses
        return text + "implementations:\n" + "".join(f"  {line}\n" for line in lines.values())
    body = block[1]
    for kernel, line in lines.items():
        own = rf"^([ \t]+)['\"]?{re.escape(kernel)}['\"]?:.*\n(?:\1(?:[ \t]|- ).*\n)*"
        body, found = re.subn(own, lambda place, line=line: f"{place[1]}{line}\n", body, flags=re.MULTILINE)
        if not found:
            indent = re.search(r"^[ \t]+(?=\w)", body, re.MULTILINE)
            kept = f"{body.rstrip()}\n".lstrip("\n")
            body = f"{kept}{indent[0] if indent else '  '}{line}\n{body[len(kept) :]}"
    return text[: block.start(1)] + body + text[block.end(1) :]
