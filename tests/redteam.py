"""The candidates of tests/candidates, judged, and held against the verdicts that they must get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fastkernels.layout import shown

ROOT = Path(__file__).parent.parent
CANDIDATES = Path(__file__).parent / "candidates"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((CANDIDATES / "expected.yaml").read_text())
OF_DEVICE = {
    device: [name for name, expected in EXPECTED.items() if expected.get("device", "cpu") == device]
    for device in ("cpu", "cuda")
}
# Of those that are judged on a group of two GPUs as well.
ON_GPUS = {
    name: {**expected, "case": "full-2ranks-T256-D4096-bf16", **expected["gpus"]}
    for name, expected in EXPECTED.items()
    if "gpus" in expected
}
_CASES = {"cpu": "llama-tiny-T16-D64-f32", "cuda": "llama-8b-T512-D4096-bf16"}
# A candidate that hangs must be ended; one that starts slowly on a busy machine must not.
_OPTIONS = {"cpu": ["--timeout", "10", "--budget", "0.5"], "cuda": ["--budget", "1"]}
# `fk kernels`, with one list of arguments after the other: to import PyTorch takes longer than to judge one
# candidate. A busy machine gives wide intervals, and `fk` then says UNSTABLE and no speed-up. False wins are
# factors, so here every speed-up is shown, unless UNSTABLE is expected; a candidate that costs milliseconds
# must be slow on any machine.
_FK = """
import json, sys
from fastkernels.cli import main
from fastkernels.measure import stats
judged = stats.is_unstable
for any_width, arguments in json.loads(sys.argv[1]):
    stats.is_unstable = (lambda *_: False) if any_width else judged
    try:
        main(arguments)
    except SystemExit:
        pass
"""
# Its workers run as on a kernel that gives no namespaces, which is how GPU machines often are.
_REFUSED = """
from fastkernels.runner.worker import template
template.OURS += ("tests.unit.runner.refuses_namespaces",)
"""


def judge(
    folder: Path,
    names: Sequence[str],
    device: str,
    namespaces: bool = True,
    wanted: dict[str, dict[str, Any]] = EXPECTED,
) -> list[dict]:
    """Reports on these candidates, one for each case and way to judge: the candidates of one share the
    baseline's processes. `folder` is the run's own."""
    together = defaultdict(list)
    for name in names:
        together[_how(wanted[name], device)].append(name)
    reports = [folder / f"{number}.json" for number in range(len(together))]
    runs = [
        (any_width, ["kernels", "--device", device, *options, "--json", str(report), *_chosen(some)])
        for report, ((any_width, *options), some) in zip(reports, together.items(), strict=True)
    ]
    done = subprocess.run(
        [sys.executable, "-c", _FK if namespaces else _REFUSED + _FK, json.dumps(runs)],
        capture_output=True,
        text=True,
        env={**_environment(), "FK_STATE_DIR": str(folder), "FK_TRACKING": "false"},
        check=False,
    )
    if done.returncode or "Traceback" in done.stderr or not all(report.is_file() for report in reports):
        raise RuntimeError(f"fk kernels ended with {done.returncode}:\n{done.stderr}")
    return [json.loads(report.read_text()) for report in reports]


def _how(expected: dict[str, Any], device: str) -> tuple[Any, ...]:
    """Whether a candidate's interval may have any width, and the options with which it is judged."""
    options = [*_OPTIONS[device], "--no-compile-check", "--case", expected.get("case", _CASES[device])]
    for option in ("size", "timeout", "budget"):
        if option in expected:
            options += [f"--{option}", str(expected[option])]
    return expected["verdict"] != "UNSTABLE", *options


def _chosen(names: Sequence[str]) -> list[str]:
    return [argument for name in names for argument in ("--candidates", str(CANDIDATES / name))]


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def naive(module: str, names: Sequence[str]) -> dict[str, dict]:
    """What a judge without defence, a program, says of each candidate."""
    folders = [str(CANDIDATES / name) for name in names]
    done = subprocess.run(
        [sys.executable, "-m", module, *folders],
        capture_output=True,
        text=True,
        env=_environment(),
        check=True,
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return {record["name"]: record for record in records}


def assert_fooled(name: str, record: dict) -> None:
    """Whether an attack beats a judge without defence, as it must to be one."""
    assert record["passed"], record
    if EXPECTED[name]["naive"] == "win":
        assert record["speedup"] > 1, record


def fault(name: str, row: dict, wanted: dict[str, dict[str, Any]] = EXPECTED) -> str | None:
    """What is wrong with the judge's row on this candidate; None where it is as expected."""
    expected, verdict, failure = wanted[name], row["verdict"], row["failure"]
    if "refused" in expected and verdict == "IMPORT_ERROR" and expected["refused"] in failure["message"]:
        return None  # this system's kernel stops the attack itself
    if verdict in expected.get("also", ()) and row["speedup"] is None:
        return None
    if not verdict.startswith(expected["verdict"]):
        return f"{verdict}, not {expected['verdict']}: {failure}"
    if verdict == "PASSED":
        return _passed(expected, row)
    if row["speedup"] is not None:
        return f"{verdict} with a speed-up of {row['speedup']}"
    for part, where in (("says", "message"), ("prints", "output")):
        if expected.get(part, "") not in failure[where]:
            return f"its {where} lacks {expected[part]!r}: {failure[where]}"
    (place,) = (CANDIDATES / name).glob(f"L?/{expected.get('task', 'rms_norm')}.py")
    if not failure["file"].startswith(shown(place.parent)):
        return f"it blames {failure['file']}"
    if expected.get("line") and (failure["file"], failure["line"]) != (shown(place), expected["line"]):
        return f"it blames {failure['file']}, line {failure['line']}, not line {expected['line']}"
    return None


def _passed(expected: dict[str, Any], row: dict) -> str | None:
    ratio = row["error_ratio"]  # none where every bit has to be right
    if row["failure"] is not None or (ratio is not None and ratio > 1):
        return f"passed with an error of {row['error_ratio']} and {row['failure']}"
    if not row["iterations_checked"] > row["samples"] >= 30:
        return f"{row['iterations_checked']} iterations checked of {row['samples']} samples"
    if expected.get("slower") and row["speedup"] >= 0.5:
        return f"it costs milliseconds, and its speed-up is {row['speedup']}"
    if "most" in expected and row["speedup"] > expected["most"]:
        return f"its speed-up is {row['speedup']}"
    if row["capture"] != expected.get("capture", row["capture"]):
        return f"its capture is {row['capture']!r}"
    if (row["origins"] or {}).get("authored", 0) > expected.get("authored", 1):
        return f"its kernels are told as {row['origins']}"
    return None
