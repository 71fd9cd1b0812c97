"""benchmarks/first_token.py: two processes, the caches of the second are those of the first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "first_token.py"


@pytest.mark.whole  # starts three processes
def test_on_a_cpu(tmp_path):
    out = tmp_path / "report.json"
    flags = ["--size", "tiny", "--device", "cpu", "--out", str(out)]
    subprocess.run([sys.executable, str(PROGRAM), *flags], check=True, timeout=120)
    report = json.loads(out.read_text())
    assert report["kind"] == "first_token"
    assert report["environment"]["device_type"] == "cpu"
    assert report["cold"]["found_cache_mb"] == 0
    for run in ("cold", "warm"):
        assert 0 < report[run]["imported_s"] < report[run]["engine_s"] < report[run]["first_token_s"]
