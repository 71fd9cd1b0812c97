"""Markdown tables of two checkouts side by side: files and lines of each package, and what a trial enters.

    git worktree add /tmp/before REVISION && .venv/bin/python scripts/house_table.py /tmp/before .

Files that a trial enters are counted by a profiler in the judge's process, which imports that checkout.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "cli", "registry", "loader", "runner", "measure", "judge", "score", "audit", "gate", "capture", "report",
    "records", "nn", "kernels", "engine",
)  # fmt: skip
TRIAL = """
import sys, threading
seen = set()
def look(frame, event, arg):
    seen.add(frame.f_code.co_filename)
threading.setprofile(look); sys.setprofile(look)
from fastkernels.cli import main
what = "kernels --target rms_norm --architecture llama --candidates examples/candidates/faster"
sys.argv = ["fk", *what.split()]
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
print("entered", len({name for name in seen if "/src/fastkernels/" in name}))
"""


def lines(files: list[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def facts(root: Path) -> dict[str, str]:
    """Row -> value."""
    home = root / "src" / "fastkernels"
    found: dict[str, str] = {}
    for package in PACKAGES:
        files = sources(home / package)
        found[f"`{package}/`: files, lines"] = f"{len(files)}, {lines(files):,}" if files else "–"
    files = sources(home)
    sizes = sorted(len(file.read_text().splitlines()) for file in files)
    found["`src`: files, lines"] = f"{len(files)}, {sum(sizes):,}"
    found["lines of a file of `src`: median, 95th percentile"] = (
        f"{statistics.median(sizes):.0f}, {sizes[int(0.95 * (len(sizes) - 1))]}"
    )
    tasks = sources(root / "tasks")
    found["`tasks/`: files, lines"] = f"{len(tasks)}, {lines(tasks):,}"
    tests = sources(root / "tests")
    found["`tests/`: files, lines"] = f"{len(tests)}, {lines(tests):,}"
    found["files of `src` that one `fk kernels` enters in the judge's process"] = entered(root)
    return found


def entered(root: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root.resolve() / "src"), "FK_TRACKING": "false"}
    done = subprocess.run(
        [sys.executable, "-c", TRIAL], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    return next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("entered"))


def main() -> None:
    before, after = (facts(Path(root)) for root in sys.argv[1:3])
    print("| | before | after |\n|---|---|---|")
    for row, value in before.items():
        print(f"| {row} | {value} | {after[row]} |")


if __name__ == "__main__":
    main()
