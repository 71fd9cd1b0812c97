"""Our engine and an architecture's reference library on one machine: equal shapes and dtype, random weights.

    python benchmarks/vs_reference.py mixtral --out benchmarks/h200/mixtral_vs_reference.json
    python benchmarks/vs_reference.py mixtral --reference vllm --reference-path ~/site-vllm
    python benchmarks/vs_reference.py siglip2 --size tiny --device cpu      says nothing about a GPU
    python benchmarks/vs_reference.py mixtral --cut-off --out a.json    of what a run that was cut off left
    python benchmarks/vs_reference.py rwkv7 --warm    fills caches of compilers, beside others that do so
    python benchmarks/vs_reference.py qwen2_vl --memory 0.2 --turns /tmp/turns    sides and comparisons with
                                          that file start beside one another, and are timed one at a time

Each side runs in a process of its own, one after the other, so that only one holds weights. The reference is
run in every setting that it has (compiled, static cache, ...); a ratio is the seconds of its fastest one over
ours: above 1 ours is faster. A setting that fails is reported with its reason. Times are medians of whole
runs, after runs that compile and capture. Operations on the host have four threads.

`--reference-path` is a folder with the reference's packages, where they are not installed beside ours.
`references/` holds one file for each library. `--side` is this program's own.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from comparison import each_side, finish, timed, turn, write
from references import architectures, comparisons
from references.base import Comparison, Machine, Side

from fastkernels.measure.environment import environment

WARM_UPS, RUNS = 3, 20  # a second call is captured by some engines, a third one replayed
BUDGET_S = {"full": 6.0, "tiny": 0.5}  # of a workload's warm-ups, and of its runs
ONE_RUN_S = 1e-9
OURS = "fastkernels"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("architecture", choices=architectures())
    parser.add_argument("--reference", help="where an architecture has several")
    parser.add_argument("--size", choices=["tiny", "full"], default="full")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--workloads", help="some of them, with commas between")
    parser.add_argument("--settings", help="some of the reference's, with commas between")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--reference-path", "--vllm-path", type=Path)
    parser.add_argument("--cut-off", action="store_true", help="from what the sides left beside --out")
    parser.add_argument("--warm", action="store_true", help="run everything once and report nothing")
    parser.add_argument("--memory", type=float, default=0.9, help="share of the GPU's for an engine")
    parser.add_argument(
        "--turns", type=Path, help="a file of comparisons whose engines start together and are timed in turn"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    found = comparisons(arguments.architecture)
    reference = arguments.reference or next(iter(found))
    if reference not in found:
        parser.error(f"no reference {reference} of {arguments.architecture}; there are {', '.join(found)}")
    comparison = found[reference]
    workloads = comparison.workloads(arguments.size)
    names = _chosen(parser, arguments.workloads, list(workloads), "workload")
    machine = comparison.machine(arguments.size, arguments.device, arguments.memory)
    if arguments.side:
        make = comparison.ours if arguments.side == OURS else comparison.theirs
        settings = arguments.settings if arguments.side != OURS else None
        budget_s = ONE_RUN_S if arguments.warm else BUDGET_S[arguments.size]
        chosen = {name: workloads[name] for name in names}
        for so_far in one_side(make, machine, chosen, settings, budget_s, arguments.turns):
            finish(arguments.result, so_far)
        return
    flags = [arguments.architecture, "--reference", reference, "--workloads", ",".join(names)]
    flags += ["--size", arguments.size, "--device", arguments.device]
    flags += ["--settings", arguments.settings] if arguments.settings else []
    flags += ["--warm"] if arguments.warm else []
    flags += ["--memory", str(arguments.memory)]
    flags += ["--turns", str(arguments.turns)] if arguments.turns else []
    packages = {reference: arguments.reference_path}
    by_side = dict.fromkeys((OURS, reference), flags)
    sides = each_side(
        __file__, by_side, arguments.out, packages, arguments.cut_off, together=bool(arguments.turns)
    )
    if arguments.warm:
        return
    report = made(comparison, machine, sides) | {"cut_off": arguments.cut_off}
    _tell(report)
    write(report, arguments.out, sides)


def _chosen(parser: argparse.ArgumentParser, asked: str | None, known: list[str], what: str) -> list[str]:
    names = asked.split(",") if asked else known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return names


# ---------------------------------------------------------------- one side


def one_side(
    make: Callable[[Machine], Side],
    machine: Machine,
    workloads: dict[str, Any],
    asked: str | None = None,
    budget_s: float = BUDGET_S["full"],
    turns: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Every workload in every setting: rows of figures, and of failures of the reference's settings. What is
    found so far, behind every row."""
    where = environment("cuda" if machine.device == "cuda" else "cpu").model_dump()
    begin = time.perf_counter()
    with turn(turns, alone=False):
        side = make(machine)
        machine.wait()
    start_s = time.perf_counter() - begin
    settings = asked.split(",") if asked else side.settings
    if unknown := [setting for setting in settings if setting not in side.settings]:
        sys.exit(f"no setting {', '.join(unknown)}; there are {', '.join(side.settings)}")
    rows = []
    with turn(turns, alone=True):
        for setting, (name, workload) in itertools.product(settings, workloads.items()):
            row = {"workload": name, "setting": setting}
            try:
                row |= _measured(side, machine, workload, setting, budget_s)
            except Exception as error:
                if len(side.settings) == 1:  # nothing else would be left of this side
                    raise
                row["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            print({key: value for key, value in row.items() if key != "all_seconds"}, file=sys.stderr)
            rows.append(row)
            yield {"version": side.version, "start_s": start_s, "rows": rows, "environment": where}


def _measured(side: Side, machine: Machine, workload: Any, setting: str, budget_s: float) -> dict[str, Any]:
    run = side.prepare(workload, setting)

    def whole() -> int:
        made = run()
        machine.wait()
        return made

    items, figures = timed(whole, warm_ups=WARM_UPS, runs=RUNS, budget_s=budget_s)
    return {"items": items, "items_per_s": items / figures["seconds"], **figures}


# ---------------------------------------------------------------- the report


def made(comparison: Comparison, machine: Machine, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ours = {row["workload"]: row for row in sides[OURS]["rows"]}
    theirs = [row for row in sides[comparison.reference]["rows"] if "failed" not in row]
    for row in theirs:
        same = ours[row["workload"]]["items"]
        assert row["items"] == same, f"{row['workload']}: {row['items']} items are not our {same}"
    by_setting: dict[str, dict[str, float]] = {}
    for row in theirs:
        ratio = row["seconds"] / ours[row["workload"]]["seconds"]
        by_setting.setdefault(row["setting"], {})[row["workload"]] = ratio
    ratios = {
        name: min(found[name] for found in by_setting.values() if name in found)
        for name in ours
        if any(name in found for found in by_setting.values())
    }
    first = next(row["setting"] for row in sides[comparison.reference]["rows"])
    return {
        "kind": "vs_reference",
        "architecture": machine.architecture,
        "reference": comparison.reference,
        "size": machine.size,
        "dtype": machine.dtype,
        "changes": dict(machine.changes) or None,
        "memory": machine.memory,
        "ratios": ratios,
        "missed": [] if machine.size == "tiny" else _missed(comparison, ratios, by_setting.get(first, {})),
        "versions": {name: side["version"] for name, side in sides.items()},
        "start_s": {name: side["start_s"] for name, side in sides.items()},
        "by_setting": [{"setting": setting, **found} for setting, found in by_setting.items()],
        "workloads": [_row(name, row) for name, side in sides.items() for row in side["rows"]],
        "environment": sides[OURS]["environment"],  # where they ran, which may be elsewhere
    }


def _missed(comparison: Comparison, ratios: dict[str, float], to_first: dict[str, float]) -> list[str]:
    """Bars that were not reached, of workloads that were measured."""
    asked = ((comparison.bars, ratios, "fastest"), (comparison.default_bars, to_first, "first"))
    return [
        f"{name}: {found[name]:.3f} of the {which} setting, {bar} wanted"
        for bars, found, which in asked
        for name, bar in bars.items()
        if found.get(name, bar) < bar
    ]


def _row(side: str, row: dict[str, Any]) -> dict[str, Any]:
    """All rows have the same keys: they are a table on the page of benchmarks."""
    keys = ("items", "seconds", "items_per_s", "first_s", "failed", "all_seconds")
    head = {"workload": row["workload"], "side": side, "setting": row["setting"]}
    return head | {key: row.get(key) for key in keys}


def _tell(report: dict[str, Any]) -> None:
    if report["environment"]["device_type"] == "cpu":
        print("CPU: not a GPU result")
    for key, value in (report["changes"] or {}).items():
        print(f"not the whole model: {key} is {value}")
    for row in report["workloads"]:
        what = row["failed"] or f"{row['seconds'] * 1e3:10.3f} ms  {row['items_per_s']:10.1f} a second"
        print(f"{row['workload']:16} {row['side']:12} {row['setting']:16} {what}")
    for name, ratio in report["ratios"].items():
        print(f"{name:16} ratio {ratio:.3f}")
    for text in report["missed"]:
        print(f"missed: {text}")


if __name__ == "__main__":
    main()
