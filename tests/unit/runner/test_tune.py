"""From rows to a device's table."""

import math
from pathlib import Path

import pytest
import yaml

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.judge.summary import summarize
from fastkernels.measure.environment import environment
from fastkernels.records import Case, KernelReport, KernelRow
from fastkernels.registry.schema import Choice
from fastkernels.runner import tune

CASES = [case for case in registry.cases("rms_norm", "tiny") if case.timed]


def rows_of(case: Case) -> int:
    """Rows to normalize, whatever the dimensions before the last are."""
    return math.prod(case.inputs["x"].shape[:-1])


BY_SIZE = {rows_of(case): case for case in CASES if "residual" not in case.inputs}


def row(size: int, name: str, us: float | None, **changes) -> KernelRow:
    case = BY_SIZE[size]
    facts = {
        "task": case.task, "variant": "default", "case": case.id, "candidate": f"impl:{name}",
        "verdict": "PASSED" if us else "UNSUPPORTED", "contract": "host", "candidate_us": us,
        "baseline_impl": "rms_norm=torch", "calls": 3,
    }  # fmt: skip
    return KernelRow(**{**facts, **changes})


def report(*rows: KernelRow) -> KernelReport:
    return KernelReport(
        schema=1, environment=environment("cpu"), request={}, rows=rows, summary=summarize(rows, 1.0, 1.0)
    )


def two_sizes() -> tuple[int, int]:
    return min(BY_SIZE), max(BY_SIZE)


def test_sizes_are_what_the_policy_is_asked_for() -> None:
    for case in CASES:
        kernel = "add_rms_norm" if "residual" in case.inputs else "rms_norm"
        assert tune.sizes(case) == {kernel: rows_of(case)}


def test_the_fastest_of_each_size_with_one_entry_for_neighbours() -> None:
    small, large = two_sizes()
    found = tune.tune(
        report(
            row(small, "torch", 10.0), row(small, "reference", 5.0),
            row(large, "torch", 10.0), row(large, "reference", 20.0),
        )
    )  # fmt: skip
    assert found == {"rms_norm": [Choice(use="reference", max_rows=small), Choice(use="torch")]}
    found = tune.tune(
        report(
            row(small, "torch", 10.0), row(small, "reference", 5.0),
            row(large, "torch", 10.0), row(large, "reference", 6.0),
        )
    )  # fmt: skip
    assert found == {"rms_norm": [Choice(use="reference")]}


def test_what_is_as_good_as_the_best_stays() -> None:
    small, large = two_sizes()
    found = tune.tune(report(row(small, "torch", 10.1), row(small, "reference", 10.0)))
    assert found == {"rms_norm": [Choice(use="torch")]}
    found = tune.tune(
        report(
            row(small, "torch", 11.0), row(small, "reference", 10.0),
            row(large, "torch", 10.0), row(large, "reference", 10.1),
        )
    )  # fmt: skip
    assert found == {"rms_norm": [Choice(use="reference")]}, "once changed, it is not changed back for noise"


def test_what_cannot_serve_or_is_wrong_is_not_chosen() -> None:
    small, _ = two_sizes()
    found = tune.tune(
        report(
            row(small, "torch", 10.0),
            row(small, "triton", None),
            row(small, "reference", 1.0, verdict="WRONG(value)"),
        )
    )
    assert found == {"rms_norm": [Choice(use="torch")]}


@pytest.mark.parametrize(
    "other",
    [{"contract": "eager", "candidate_us": 5.0}, {"verdict": "UNSTABLE", "candidate_us": None}],
    ids=["contract", "unstable"],
)
def test_a_case_decides_if_all_were_timed_under_one_contract(other, tmp_path) -> None:
    small, large = two_sizes()
    incomparable = row(small, "torch", 10.0), row(small, "reference", 5.0, **other)
    assert tune.tune(report(*incomparable)) == {"rms_norm": []}
    decided = row(large, "torch", 10.0), row(large, "reference", 5.0)
    assert tune.tune(report(*incomparable, *decided)) == {"rms_norm": [Choice(use="reference")]}
    path = tmp_path / "device.yaml"
    tune.write({"rms_norm": [], "glu": [Choice(use="torch")]}, path, report(*decided))
    assert yaml.safe_load(path.read_text())["implementations"] == {"glu": ["torch"]}


def test_a_report_without_implementations_is_refused() -> None:
    with pytest.raises(UsageError, match="--providers"):
        tune.tune(report(row(two_sizes()[0], "torch", 1.0, candidate="mine")))


DEVICE = """# Ceilings of it.
name: A device
ceilings: {copy_tb_s: 4.0, gemm_tflops: {bfloat16: 1.0}}
# implementations: measured by fk tune on 2025-01-01, torch 1
implementations:
  rms_norm: [triton]
  glu:
  - {use: torch, max_rows: 4}
  - triton
sources:
  machine: one
"""


def test_the_table_is_written_and_other_facts_stay(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(DEVICE)
    table = {"rms_norm": [Choice(use="reference", max_rows=32), Choice(use="torch")]}
    for _ in range(2):  # again: it replaces its own
        tune.write(table, path, report(row(two_sizes()[0], "torch", 1.0)))
        text = path.read_text()
        found = yaml.safe_load(text)
        assert found["implementations"] == {"rms_norm": [{"use": "reference", "max_rows": 32}, "torch"]}
        assert found["ceilings"]["copy_tb_s"] == 4.0
        assert found["sources"] == {"machine": "one"}
        assert text.startswith("# Ceilings of it.\n")
        assert text.count("fk tune") == 1


def test_a_table_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = report(row(two_sizes()[0], "torch", 1.0))
    with pytest.raises(UsageError, match=r"--out .*table\.yaml: .*Name another file"):
        tune.write({"glu": [Choice(use="torch")]}, tmp_path / "file" / "table.yaml", made)


def test_the_committed_tables_survive_their_own_rewriting(tmp_path: Path) -> None:
    """What the policy reads is what fk tune writes."""
    for file in (Path(registry.__file__).parents[3] / "registry" / "devices").glob("*.yaml"):
        copy = tmp_path / file.name
        copy.write_text(file.read_text())
        before = yaml.safe_load(file.read_text())
        tune.write({"glu": [Choice(use="torch")]}, copy, report(row(two_sizes()[0], "torch", 1.0)))
        after = yaml.safe_load(copy.read_text())
        assert after.pop("implementations") == {"glu": ["torch"]}
        before.pop("implementations", None)
        assert after == before
