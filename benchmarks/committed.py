"""Reports as they are committed: a line for each row, figures of six digits.

python benchmarks/committed.py benchmarks/h200/*.json      rewrites them so
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastkernels.report.json import text_of

DIGITS = 6


def write(report: Mapping[str, Any], path: Path) -> None:
    data = written(report).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def written(report: Mapping[str, Any]) -> str:
    parts = []
    for key, value in _rounded(report).items():
        lines = [json.dumps(one, separators=(",", ":")) for one in value] if isinstance(value, list) else None
        text = json.dumps(value) if lines is None else "[\n" + ",\n".join(lines) + "\n]"
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(json.loads(text_of(Path(name))), Path(name))
