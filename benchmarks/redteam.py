"""Every candidate of tests/candidates on this machine, and every honest implementation of our kernels.

    python benchmarks/redteam.py --alternates kernels_llama.json --out benchmarks/h200/redteam.json --resume
    python benchmarks/redteam.py --out benchmarks/cpu/redteam.json

Candidates are judged on the device that they are written for; those of collectives on two GPUs as well, where
there are as many, and those in CUDA where there is one. The honest alternates are the rows of `fk kernels
--providers` reports of the same machine, and must pass wherever they are supported. --resume keeps, of what
`--out` holds, the rows of candidates that are not judged this time; each row says with which revision it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from committed import write
from tests.redteam import EXPECTED, OF_DEVICE, ON_GPUS, fault, judge

from fastkernels.report.json import text_of

# Groups first: from then on one GPU is enough. What ends early leaves what it has judged.
WHERE = ("gpus", "cuda", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--alternates", type=Path, nargs="+", default=[], help="reports of fk kernels --providers"
    )
    parser.add_argument("--resume", action="store_true", help="add to the rows of --out")
    parser.add_argument(
        "--where",
        nargs="+",
        choices=WHERE,
        default=WHERE,
        help="of groups of GPUs, CUDA and a CPU; default: all",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these candidates")
    arguments = parser.parse_args()
    if unknown := set(arguments.only or ()) - EXPECTED.keys():
        parser.error(f"no candidates of tests/candidates/expected.yaml: {', '.join(sorted(unknown))}")
    resumed = arguments.resume and arguments.out.is_file()
    before = json.loads(arguments.out.read_text()) if resumed else None
    alternates = [row for path in arguments.alternates for row in _alternates(path)]
    on_gpus, reports = [], []
    gpus = torch.cuda.device_count()
    for where in (where for where in WHERE if where in arguments.where):
        there = ON_GPUS if where == "gpus" else OF_DEVICE[where]
        names = [name for name in there if arguments.only is None or name in arguments.only]
        with tempfile.TemporaryDirectory() as folder:
            if where == "gpus" and gpus > 1:
                on_gpus = judge(Path(folder), names, "cuda", wanted=ON_GPUS)
            elif where == "cpu" or (where == "cuda" and gpus):
                reports += judge(Path(folder), names, where)
        if reports or on_gpus:
            found = summary(reports, alternates, on_gpus, before)
            write(found, arguments.out)
            shown = {key: value for key, value in found.items() if key not in ("rows", "environment")}
            print(where, shown, flush=True)


def summary(
    reports: list[dict],
    alternates: list[dict],
    on_gpus: Sequence[dict] = (),
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Of the candidates' reports, and of the rows of alternates. on_gpus: reports of groups of GPUs; before:
    an earlier summary, whose rows stay unless they are judged again."""
    before = before or {"rows": []}
    judged = [
        {
            "candidate": row["candidate"],
            "device": device or report["environment"]["device_type"],
            "expected": wanted[row["candidate"]]["verdict"],
            "verdict": row["verdict"],
            "speedup": row["speedup"],
            "fault": fault(row["candidate"], row, wanted),
            "revision": report["environment"]["git_revision"],
        }
        for some, wanted, device in ((reports, EXPECTED, None), (on_gpus, ON_GPUS, "gpus"))
        for report in some
        for row in report["rows"]
    ]
    rows = [*{(row["candidate"], row["device"]): row for row in (*before["rows"], *judged)}.values()]
    honest = [row for row in alternates if row["verdict"] not in ("UNSUPPORTED", "UNSTABLE")]
    condemned = [row for row in honest if _refused(row)]
    return {
        "kind": "red-team",
        "candidates": len(rows),
        "as_expected": sum(row["fault"] is None for row in rows),
        "false_passed": sum(row["verdict"] == "PASSED" != row["expected"] for row in rows),
        "false_failed": sum(row["expected"] == "PASSED" and _refused(row) for row in rows) + len(condemned),
        "alternates": len(honest),
        "rows": rows,
        "condemned": [
            f"{row['candidate']} {row['task']} {row['case']}: {row['verdict']} {row['failure']}"
            for row in condemned
        ],
        # Of the machine that began.
        "environment": before.get("environment") or [*on_gpus, *reports][0]["environment"],
    }


def _refused(row: dict) -> bool:
    """Called wrong; UNSTABLE is no word on a kernel."""
    return row["verdict"] not in ("PASSED", "UNSTABLE")


def _alternates(path: Path) -> list[dict]:
    report = json.loads(text_of(path))
    if not report["request"]["providers"]:
        raise SystemExit(f"{path} is no report of fk kernels --providers")
    return report["rows"]


if __name__ == "__main__":
    main()
