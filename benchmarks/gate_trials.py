"""How often `fk gate` catches a regression of 5 %, and passes identical code.

    python benchmarks/gate_trials.py --out benchmarks/h200/gate_trials.json --times 20

Each trial is a whole gate: fresh processes, a head's folder against its base's. Both hold the baseline's
gated unit; the slow head computes 5 % of the rows once more, which on a GPU is 5 % of the time. The report is
written after every trial; --resume goes on with those that it holds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from comparison import write

TARGET, CASE = "L1/glu", "llama-8b-T8192-N28672-bf16"
AGAIN_PCT = 5
SAME = '''"""The baseline's."""

from fastkernels.baseline.L1.glu import SiluAndMul as Baseline


class SiluAndMul(Baseline):
    pass
'''
SLOWER = f'''"""The baseline's, and {AGAIN_PCT} % of its rows once more."""

from torch import Tensor

from fastkernels.baseline.L1.glu import SiluAndMul as Baseline


class SiluAndMul(Baseline):
    def forward(self, x: Tensor) -> Tensor:
        super().forward(x[: -(-x.shape[0] * {AGAIN_PCT} // 100)])
        return super().forward(x)
'''
WANTED = {"same": "passed", "slower": "failed"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20, help="trials of each head (default: %(default)s)")
    parser.add_argument("--case", default=CASE, help="of L1/glu (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true", help="add to the trials of --out")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.out:
        parser.error("--resume goes on with --out FILE: name it")
    from fastkernels.measure.environment import environment

    told: dict[str, Any] = {"kind": "gate-trials", "case": f"{TARGET} {arguments.case}"}
    rows: list[dict[str, Any]] = []
    told["environment"], told["earlier"] = environment(arguments.device).model_dump(), []
    if arguments.resume and arguments.out.is_file():
        before = json.loads(arguments.out.read_text())
        rows, told["earlier"] = before["rows"], [*before["earlier"], before["environment"]]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {"base": SAME, "same": SAME, "slower": SLOWER}.items():
            file = Path(folder) / name / f"{TARGET}.py"
            file.parent.mkdir(parents=True)
            file.write_text(text)
        for trial in range(len(rows) // len(WANTED), arguments.times):
            for head in WANTED:
                rows.append({"trial": trial, **_gate(Path(folder), head, arguments.case, arguments.device)})
                print(rows[-1], flush=True)
            write({**told, **_summary(rows), "rows": rows}, arguments.out)


def _summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    right = {
        head: sum(row["outcome"] == WANTED[head] for row in rows if row["head"] == head) for head in WANTED
    }
    times = len(rows) // len(WANTED)
    return {"times": times, "identical_passed": right["same"], "regressions_caught": right["slower"]}


def _gate(folder: Path, head: str, case: str, device: Any) -> dict[str, Any]:
    from fastkernels.gate.gate import GateRequest, run_gate

    request = GateRequest(
        head=str(folder / head), base=str(folder / "base"), targets=(TARGET,), case_glob=case, device=device
    )
    report = run_gate(request).report
    if not report.complete:
        raise SystemExit("interrupted: the report holds the trials before")
    (row,) = (row for row in report.rows if row.case == case)
    speedups = [round(look.speedup, 4) for look in row.looks if look.speedup is not None]
    told = {"outcome": report.outcome, "verdict": row.verdict, "reason": row.reason}
    return {"head": head, **told, "speedups": speedups, "wall_s": round(report.summary.wall_s, 1)}


if __name__ == "__main__":
    main()
