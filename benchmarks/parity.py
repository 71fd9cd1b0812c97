"""The outcome of the parity tests of each architecture, as a report: our modules beside reference libraries.

    python benchmarks/parity.py --out benchmarks/cpu/parity.json

An architecture's tests are those of `tests/parity/test_<architecture>.py` and `test_<architecture>_*.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from comparison import write
from gpu_tests import ROOT, Outcomes

from fastkernels import registry
from fastkernels.measure.environment import environment


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows = [row for entry in registry.architectures() if (row := outcome(entry.id))]
    write({"kind": "parity", "rows": rows, "environment": environment("cpu").model_dump()}, out, {})
    sys.exit(any(row["failed"] for row in rows))


def outcome(architecture: str) -> dict[str, Any] | None:
    folder = ROOT / "tests" / "parity"
    found = (folder.glob(f"test_{architecture}{rest}.py") for rest in ("", "_*"))
    files = sorted(str(file) for files in found for file in files)
    if not files:
        return None
    outcomes, begin = Outcomes(), time.perf_counter()
    pytest.main([*files, "--whole", "-q", "-p", "no:cacheprovider"], plugins=[outcomes])
    seconds = time.perf_counter() - begin
    return {
        "architecture": architecture,
        **outcomes.counts(),
        "seconds": seconds,
        "skips": dict(outcomes.skips),
        "failures": outcomes.failures,
    }


if __name__ == "__main__":
    main()
