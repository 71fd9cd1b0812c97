"""An architecture with named outputs is files in registry/ and tasks/, and nothing else: `two_tower/` is laid
over a copy of the checkout, and judged there as a user would judge it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.program import settings

ROOT = Path(__file__).parents[2]
NEW = Path(__file__).parent / "two_tower"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new file is copied; what is in one of the registry's files stands behind what is there."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("src", "registry", "tasks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in sorted(path for path in NEW.rglob("*") if path.suffix in (".py", ".yaml")):
        there = folder / file.relative_to(NEW)
        before = there.read_text() if there.exists() else ""
        there.write_text(before + file.read_text())
    return folder


def judged(checkout: Path, folder: Path, *arguments: str) -> tuple[int, dict]:
    asked = ("--model", "two_tower", "--size", "tiny", "--device", "cpu", "--rounds", "2", "--seed", "1")
    asked += ("--workload", "pairs-32")
    done = subprocess.run(
        [sys.executable, "-m", "fastkernels", "eval", "--json", "report.json", *asked, *arguments],
        env={**os.environ, **settings(folder), "PYTHONPATH": str(checkout / "src")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "report.json").exists(), done.stderr
    return done.returncode, json.loads((folder / "report.json").read_text())["models"][0]


def test_it_is_judged_against_itself(checkout: Path, tmp_path: Path) -> None:
    code, model = judged(checkout, tmp_path, "--self-test", "--workload", "pair-single")
    assert code in (0, 3)  # 3: the machine is too busy to say how fast
    assert model["valid"]
    assert model["correctness"] == 1.0
    assert model["ruin_point"] > 10 * model["noise_floor"]
    assert len(model["noise_d"]) == 3
    assert {w["name"]: w["unit"] for w in model["workloads"]} == {"pairs-32": "pairs/s", "pair-single": "s"}
    answers = [len(workload["audited_d"]) for workload in model["workloads"]]
    assert len(model["d"]) == 24 + sum(answers)
    assert all(count >= 2 * 8 and count % 8 == 0 for count in answers), "eight of each timed run"


def test_a_candidate_with_one_wrong_output_of_two_is_invalid(checkout: Path, tmp_path: Path) -> None:
    """The scores are another class's; the vector, of the same pass, is right."""
    file = tmp_path / "mine" / "L1" / "linear.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from fastkernels.baseline.L1.linear import Linear as Base\n\n\n"
        "class Linear(Base):\n    def forward(self, x):\n        out = super().forward(x)\n"
        "        return out.flip(-1) if out.shape[-1] == 6 else out\n"
    )
    code, model = judged(checkout, tmp_path, "--candidates", str(file.parents[1]))
    assert model["failure"] is None
    assert code == 1
    assert model["swap"]["sites"] == 2
    assert not model["valid"]
    assert model["correctness"] < 0.6
