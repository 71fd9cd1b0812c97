"""From times to a device's table."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fastkernels import registry
from fastkernels.errors import FileFormatError, UsageError
from fastkernels.measure.environment import environment
from fastkernels.records import Contract, TunedRow, TuneReport, Untimed
from fastkernels.registry.schema import Choice
from fastkernels.runner.tuning import table


def rows(
    case: str,
    size: int,
    chosen: str,
    dtype: str = "bfloat16",
    apart: float = 0.0,
    contract: Contract = "graph",
    **us: float,
) -> list[TunedRow]:
    """Of one case. apart: what the results of the others than the chosen one differ by."""
    return [
        TunedRow(
            task="L1/rms_norm", case=case, kernel="rms_norm", implementation=name, us=time, size=size,
            dtype=dtype, chosen=name == chosen, contract=contract, noise_pct=0.1,
            difference=0.0 if name == chosen else apart,
        )
        for name, time in us.items()
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def no_others(monkeypatch) -> None:
    """The kernel has the implementations that a test times."""
    monkeypatch.setattr(table, "registered", {})


def report(
    *several: list[TunedRow], untimed: tuple[Untimed, ...] = (), left: dict[str, int] | None = None
) -> TuneReport:
    found = [row for each in several for row in each]
    summary = table.summarize(found, len(several), left or {}, 1.0)
    return TuneReport(
        schema=1, environment=environment("cpu"), request={}, rows=tuple(found), untimed=untimed,
        summary=summary,
    )  # fmt: skip


def proposed(*several: list[TunedRow], untimed: tuple[Untimed, ...] = ()) -> list[str | dict]:
    """The entry of the one kernel, as YAML has it; [] where it keeps its own."""
    (found,) = table.proposals(report(*several, untimed=untimed))
    plain = [choice.model_dump(exclude_none=True) for choice in found.choices]
    return [one if len(one) > 1 else one["use"] for one in plain]


def test_the_share_and_the_exceptions_of_the_table_in_force() -> None:
    seen = report(
        rows("near", 8, "torch", torch=10.2, triton=10.0),
        rows("far", 8, "torch", torch=15.0, triton=10.0),
        rows("alone", 8, "torch", torch=10.0),
        rows("wrong", 8, "torch", torch=15.0, triton=10.0, apart=0.5),
    ).summary
    assert (seen.cases, seen.share, seen.timed) == (2, 0.5, 4), "one alone is compared with nothing"
    (behind,) = seen.exceptions
    assert (behind.case, behind.chosen, behind.best, behind.ratio) == ("far", "torch", "triton", 1.5)


def test_a_choice_within_the_bound_stays() -> None:
    assert proposed(rows("a", 8, "torch", torch=10.2, triton=10.0)) == []


def test_sizes_with_one_best_are_one_range() -> None:
    small = [rows(f"s{n}", n, "torch", torch=15.0, triton=10.0) for n in (1, 2, 8)]
    large = [rows(f"l{n}", n, "torch", torch=10.0, triton=15.0) for n in (64, 4096)]
    assert proposed(*small, *large) == [{"use": "triton", "max_rows": 8}, "torch", "triton"]


def test_a_break_that_makes_no_case_good_is_not_made() -> None:
    near = [rows(f"s{n}", n, "torch", torch=10.2, triton=10.0) for n in (1, 2)]
    assert proposed(*near, rows("l", 64, "torch", torch=12.0, triton=10.0)) == ["triton", "torch"]


def test_dtypes_are_told_apart_where_they_differ() -> None:
    halves = [rows(f"h{n}", n, "torch", torch=10.0, triton=15.0) for n in (8, 64, 512)]
    wide = rows("w", 64, "torch", "float32", torch=15.0, triton=10.0)
    assert proposed(*halves, wide) == [{"use": "triton", "dtype": "float32"}, "torch", "triton"]


def test_what_does_not_take_every_call_is_tried_first_and_another_takes_the_rest() -> None:
    both = rows("both", 8, "triton", triton=15.0, flash=10.0)
    rest = rows("rest", 8, "triton", triton=15.0)
    assert proposed(both, rest) == ["flash", "triton"]


def test_what_cannot_be_captured_serves_eager_calls_and_another_the_captured_ones() -> None:
    captured = rows("a", 8, "triton", triton=10.0, torch=20.0)
    eager = rows("a", 8, "triton", contract="eager", triton=15.0, torch=20.0, flash=10.0)
    found = report(captured, eager)
    assert found.summary.cases == 2
    assert [one.contract for one in found.summary.exceptions] == ["eager"]
    assert proposed(captured, eager) == ["flash", "triton", "torch"]


def test_behind_the_best_come_the_others_for_machines_and_calls_without_it() -> None:
    cases = [rows("s", 1, "torch", torch=15.0, flash=10.0), rows("l", 64, "torch", torch=15.0, triton=10.0)]
    assert proposed(*cases) == ["flash", "triton", "torch"]


def test_what_has_no_time_serves_behind_what_has_one(monkeypatch) -> None:
    monkeypatch.setattr(
        table, "registered", {"rms_norm": SimpleNamespace(names=["reference", "liger", "torch"])}
    )
    assert proposed(rows("s", 1, "torch", torch=15.0, flash=10.0)) == ["flash", "torch", "liger"]


def test_sizes_below_all_that_were_timed_keep_their_choice_where_cases_are_left() -> None:
    large = rows("l", 64, "torch", torch=15.0, triton=10.0)
    (found,) = table.proposals(report(large, left={"L1/rms_norm": 3}))
    assert [(one.use, one.max_rows) for one in found.choices] == [
        ("torch", 63),
        ("triton", None),
        ("torch", None),
    ]
    assert proposed(large) == ["triton", "torch"]


def test_what_has_no_time_or_other_results_is_not_chosen() -> None:
    slow = Untimed(task="L1/rms_norm", case="b", kernel="rms_norm", implementation="flash", why="compiles")
    a = rows("a", 8, "torch", torch=12.0, flash=10.0)
    b = rows("b", 8, "torch", torch=10.0)
    assert proposed(a) == ["flash", "torch"]
    assert proposed(a, b, untimed=(slow,)) == [], "it would run in b, for nobody knows how long"
    assert proposed(rows("a", 8, "torch", torch=12.0, flash=10.0, apart=0.5)) == []


def test_an_exception_that_no_table_can_mend_says_so() -> None:
    short = rows("short", 1, "torch", torch=15.0, triton=10.0)
    long = [rows(f"long{n}", 1, "torch", torch=10.0, triton=15.0) for n in range(3)]
    (found,) = table.proposals(report(short, *long))
    assert found.choices == ()
    (behind,) = found.after
    assert behind.case == "short"
    assert behind.why == "of one size and dtype with long0, where torch is best: needs another key"


def test_a_kernel_whose_choice_has_no_time_is_undecided() -> None:
    with pytest.raises(UsageError, match="nothing is decided"):
        table.proposals(report(rows("a", 8, "flash", torch=10.0, triton=9.0)))


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


def test_an_entry_is_replaced_and_everything_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(DEVICE)
    for use in ("reference", "torch"):  # again: it replaces its own
        entry = [Choice(use=use, max_rows=32, dtype="float32"), Choice(use="torch")]
        table.write({"rms_norm": entry}, path, report(), path)
        wanted = f"  rms_norm: [{{use: {use}, max_rows: 32, dtype: float32}}, torch]  # fk tune on "
        lines = path.read_text().splitlines()
        (place,) = [i for i, line in enumerate(lines) if line.startswith(wanted)]
        lines[place] = "  rms_norm: [triton]"
        assert lines == DEVICE.splitlines()


def test_an_entry_on_several_lines_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(DEVICE)
    made = report()
    table.write({"glu": [Choice(use="torch")], "softmax": [Choice(use="torch")]}, path, made, path)
    found = yaml.safe_load(path.read_text())
    assert found.pop("implementations") == {"rms_norm": ["triton"], "glu": ["torch"], "softmax": ["torch"]}
    before = yaml.safe_load(DEVICE)
    before.pop("implementations")
    assert found == before


@pytest.mark.parametrize(
    "text", ["name: A device\n", "name: A device\nimplementations:  # none\n\nl2_mib: 6\n", ""]
)
def test_a_file_without_entries_gets_them(text: str, tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(text)
    table.write({"glu": [Choice(use="torch")]}, path, report(), path)
    assert table.entries(path) == {"glu": ["torch"]}


def test_a_new_file_begins_as_a_copy_of_the_devices(tmp_path: Path) -> None:
    device, out = tmp_path / "device.yaml", tmp_path / "new" / "out.yaml"
    device.write_text(DEVICE)
    made = report()
    table.write({"softmax": [Choice(use="torch")]}, out, made, device)
    assert table.entries(out) == {**table.entries(device), "softmax": ["torch"]}
    assert device.read_text() == DEVICE
    table.write({"softmax": [Choice(use="torch")]}, tmp_path / "first.yaml", made, tmp_path / "none.yaml")
    assert yaml.safe_load((tmp_path / "first.yaml").read_text())["name"] == made.environment.device


@pytest.mark.parametrize("kernel", ["rms_norm", "softmax"])
def test_a_file_whose_entries_cannot_be_told_apart_is_left_alone(kernel: str, tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text("name: A device\nimplementations: {rms_norm: [triton]}\n")
    made = report()
    with pytest.raises(FileFormatError, match="on a line of its own"):
        table.write({kernel: [Choice(use="torch")]}, path, made, path)
    assert path.read_text() == "name: A device\nimplementations: {rms_norm: [triton]}\n"


def test_a_table_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = report()
    out = tmp_path / "file" / "table.yaml"
    with pytest.raises(UsageError, match=r"--out .*table\.yaml: .*Name another file"):
        table.write({"glu": [Choice(use="torch")]}, out, made, tmp_path / "none.yaml")


def test_the_committed_tables_lose_nothing(tmp_path: Path) -> None:
    """What the policy reads is what fk tune writes."""
    for file in (Path(registry.__file__).parents[3] / "registry" / "devices").glob("*.yaml"):
        copy = tmp_path / file.name
        made = report()
        table.write({"glu": [Choice(use="torch")], "rope": []}, copy, made, file)
        before, after = (yaml.safe_load(each.read_text()) for each in (file, copy))
        before["implementations"]["glu"] = ["torch"]
        assert after == before
