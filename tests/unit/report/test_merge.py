"""What rows come to, and parts of a run as one report."""

import pytest

from fastkernels.errors import UsageError
from fastkernels.judge.summary import merge, summarize
from fastkernels.records import CandidateFiles


@pytest.fixture
def part(kernel_report):
    """Some rows of the example report, as if the run had been asked for them only."""

    def of(start: int, stop: int | None, **changes):
        rows = kernel_report.rows[start:stop]
        summary = summarize(rows, wall_s=10.0, measuring_s=4.0, looking_s=3.0)
        return kernel_report.model_copy(
            update={"rows": rows, "summary": summary, "complete": True, **changes}
        )

    return of


def test_parts_become_the_whole_again(part, kernel_report):
    whole = kernel_report
    middle = len(whole.rows) // 2
    found = merge([part(0, middle, notes=("a", "b")), part(middle, None, notes=("b", "c"))])
    assert found.rows == whole.rows
    assert found.notes == ("a", "b", "c")
    assert found.summary.wall_s == 20
    assert found.summary.measuring_share == pytest.approx(0.4)
    assert found.summary.looking_share == pytest.approx(0.3)
    again = summarize(whole.rows, 20.0, 8.0, 6.0)
    assert found.summary == again
    assert len(found.request["parts"]) == 2


def test_one_incomplete_part_makes_the_whole_incomplete(part):
    assert not merge([part(0, 1), part(1, 2, complete=False)]).complete


def test_parts_are_of_the_same_files(part):
    one, two, other = (CandidateFiles(name=n, folders=(n,), sha256=s) for n, s in ("a1", "b2", "a3"))
    found = merge([part(0, 1, candidates=(one,)), part(1, 2, candidates=(one, two))])
    assert found.candidates == (one, two)
    with pytest.raises(UsageError, match="files of a changed between the reports"):
        merge([part(0, 1, candidates=(one,)), part(1, 2, candidates=(other,))])


def test_a_row_is_in_one_part_only(part):
    with pytest.raises(UsageError, match="in two of the reports"):
        merge([part(0, 2), part(1, None)])


@pytest.mark.parametrize("name", ["device", "torch", "git_revision"])
def test_parts_are_of_one_machine(part, name: str):
    other = part(1, None)
    other = other.model_copy(update={"environment": other.environment.model_copy(update={name: "another"})})
    with pytest.raises(UsageError, match=rf"one environment.*{name}"):
        merge([part(0, 1), other])


@pytest.mark.parametrize(("name", "value"), [("providers", True), ("golden", "other/folder")])
def test_parts_ask_one_question(part, name: str, value: object):
    other = part(1, None)
    other = other.model_copy(update={"request": {**other.request, name: value}})
    with pytest.raises(UsageError, match=rf"one request.*{name}"):
        merge([part(0, 1), other])


def test_the_command_joins_files_and_refuses_other_kinds(part, eval_report, tmp_path, capsys):
    from fastkernels.cli import main
    from fastkernels.report import json

    paths = [str(tmp_path / f"{i}.json") for i in range(3)]
    for path, report in zip(paths, (part(0, 2), part(2, None), eval_report)):
        json.write(report, path)
    out = tmp_path / "whole.json"
    with pytest.raises(SystemExit) as stopped:
        main(["merge", paths[0], paths[1], "--json", str(out)])
    assert stopped.value.code == 1, "two of its rows failed"
    assert len(json.load_kernels(out).rows) == 6
    with pytest.raises(SystemExit) as stopped:
        main(["merge", paths[0], paths[2]])
    assert stopped.value.code == 2
    assert "not of `fk kernels`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdict", "complete", "code"),
    [("PASSED", True, 0), ("WRONG(value)", True, 1), ("UNSTABLE", True, 3), ("PASSED", False, 130)],
)
def test_the_exit_code_is_that_of_one_run(part, verdict, complete, code, tmp_path):
    from fastkernels.cli import main
    from fastkernels.report import json

    paths = [str(tmp_path / f"{i}.json") for i in range(2)]
    first = part(0, 1)
    changed = first.rows[0].model_copy(update={"verdict": verdict, "case": "another"})
    second = part(0, 1, rows=(changed,), complete=complete)
    for path, report in zip(paths, (first, second)):
        json.write(report, path)
    for order in (paths, paths[::-1]):
        with pytest.raises(SystemExit) as stopped:
            main(["merge", *order])
        assert stopped.value.code == code


def test_the_mean_goes_over_the_primary_contract_and_the_others_are_counted(kernel_report):
    first = kernel_report.rows[0]
    rows = [first.model_copy(update={"contract": "graph"})]
    rows += [first.model_copy(update={"contract": "eager", "speedup": 9.0})] * 2
    found = summarize(rows, 1.0, 1.0)
    assert (found.contract, found.geomean_speedup, found.other_contracts) == ("graph", first.speedup, 2)
    found = summarize(rows[1:], 1.0, 1.0)
    assert (found.contract, found.other_contracts) == ("eager", 0)
    assert found.geomean_speedup == pytest.approx(9)
    found = summarize(kernel_report.rows, 1.0, 1.0)
    assert (found.contract, found.other_contracts) == ("host", 0)
    assert summarize([], 1.0, 1.0).contract is None


def test_candidates_that_compete_have_no_mean_of_all(kernel_report):
    (row, *_) = kernel_report.rows
    both = [row, row.model_copy(update={"candidate": "another"})]
    assert summarize(both, 1.0, 1.0).geomean_speedup is None
    assert summarize(both[:1], 1.0, 1.0).geomean_speedup == pytest.approx(row.speedup)


@pytest.mark.parametrize("change", [{"calls": 0}, {"speedup": 0.0}, {"speedup": float("inf")}])
def test_rows_that_no_run_writes(part, change):
    report = part(0, 1)
    row = report.rows[0].model_copy(update=change)
    with pytest.raises(UsageError, match="no row that fk kernels writes"):
        merge([report.model_copy(update={"rows": (row,)})])
