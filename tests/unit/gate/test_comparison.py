"""What the two words of the command line mean, and what their errors tell the user to do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fastkernels import registry
from fastkernels.errors import FileFormatError, NotFoundError, UsageError
from fastkernels.gate.comparison import opened
from fastkernels.gate.inventory import Filters
from fastkernels.gate.pairs import Comparison
from fastkernels.layout import shown
from fastkernels.runner.kernel_trial.request import KernelsRequest, judged_files
from tests.unit.gate.repositories import CASES, KERNEL, ROOT, commit, git, make_repository

EXAMPLES = ROOT / "examples" / "candidates"
FASTER, SLOWER = str(EXAMPLES / "faster"), str(EXAMPLES / "slower")
REPORT = ROOT / "benchmarks" / "cpu" / "kernels_examples.json"
RMS_NORM = Filters(targets=("rms_norm",))


def compared(head: str, base: str | None = None, filters: Filters = RMS_NORM) -> Comparison:
    with opened(head, base, filters, "tiny") as found:
        return found


# ---------------------------------------------------------------- folders


def test_one_folder_with_another() -> None:
    (pair,) = compared(SLOWER, FASTER).pairs
    assert (pair.name, pair.head.layers, pair.base.layers) == (
        "slower",
        (EXAMPLES / "slower",),
        (EXAMPLES / "faster",),
    )
    assert list(pair.head.works) == list(pair.base.works)


def test_the_same_folder_on_both_sides() -> None:
    (pair,) = compared(FASTER, FASTER).pairs
    assert pair.head.works
    assert pair.head == pair.base


def test_a_folder_with_the_baseline() -> None:
    found = compared(FASTER)
    assert found.base == "the baseline"
    assert found.pairs[0].base.is_baseline
    assert list(found.pairs[0].base.works) == list(found.pairs[0].head.works)


def test_a_head_that_has_nothing_of_what_is_asked() -> None:
    with pytest.raises(UsageError, match="The head has no candidate for L1/glu, but for L1/rms_norm"):
        compared(FASTER, None, Filters(targets=("glu",)))


def test_candidates_of_the_head_that_are_not_compared_are_told(tmp_path: Path) -> None:
    shutil.copytree(FASTER, tmp_path / "one")
    (tmp_path / "two" / "L1").mkdir(parents=True)
    for name in ("glu", "rmsnorm"):
        (tmp_path / "two" / "L1" / f"{name}.py").write_text("")
    for base in (None, FASTER):
        file, idle = compared(str(tmp_path), base).notes
        assert "two/L1/rmsnorm.py is no registered task" in file
        assert idle == "not judged, since nothing that they replace was asked for: two"


def test_a_folder_as_a_revision_has_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    mine = tmp_path / "kernels" / "mine"
    shutil.copytree(EXAMPLES / "slower", mine)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "x")
    shutil.copytree(EXAMPLES / "faster", mine, dirs_exist_ok=True)
    with opened(str(mine), "HEAD", RMS_NORM, "tiny") as found:
        (pair,) = found.pairs
        then = pair.base.layers[0] / "L1" / "rms_norm.py"
        assert then.read_bytes() == (EXAMPLES / "slower" / "L1" / "rms_norm.py").read_bytes()
        assert pair.head.layers == (mine,)
        assert found.base.startswith("mine of HEAD (")
    assert not then.exists(), "the export goes with the comparison"


@pytest.mark.parametrize("before", ["nothing", "an empty workspace"])
def test_a_folder_that_the_base_does_not_have_yet(tmp_path: Path, before: str) -> None:
    git(tmp_path, "init", "--quiet")
    if before != "nothing":
        (tmp_path / "mine" / "L1").mkdir(parents=True)
        (tmp_path / "mine" / "L1" / ".gitkeep").touch()
    commit(tmp_path, "first")
    shutil.copytree(EXAMPLES / "slower", tmp_path / "mine", dirs_exist_ok=True)
    (pair,) = compared(str(tmp_path / "mine"), "first").pairs
    assert pair.head.works
    assert not pair.base.works


def test_a_stack_as_a_revision_has_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    for name in ("faster", "slower"):
        shutil.copytree(EXAMPLES / name, tmp_path / name)
    commit(tmp_path, "first")
    stack = f"{tmp_path / 'slower'}:{tmp_path / 'faster'}"
    (pair,) = compared(stack, "first").pairs
    assert [layer.name for layer in pair.base.layers] == ["slower", "faster"]
    assert not set(pair.base.layers) & set(pair.head.layers)


def test_a_folder_outside_the_base_s_repository(repository: Path) -> None:
    with pytest.raises(UsageError, match="lies outside"):
        compared(f"{repository / 'tasks/baseline'}:{FASTER}", "first")


@pytest.mark.parametrize(
    ("head", "base", "told"),
    [
        (str(ROOT / "docs"), None, "no candidate here"),
        (FASTER, str(ROOT / "docs"), "no candidate here"),
        (FASTER, "./nowhere", "no such folder"),
        (FASTER, "/nowhere/at/all", "no such folder"),
        (str(ROOT / "README.md"), None, "a file; HEAD is a candidate's folder"),
        (str(REPORT), None, "A report can be the base"),
        (FASTER, str(ROOT / "README.md"), "not JSON"),
    ],
)
def test_folders_that_are_none(head: str, base: str | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        compared(head, base)


def test_a_misspelt_folder_has_near_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(NotFoundError, match="Did you mean examples/candidates/faster"):
        compared("examples/candidates/fastr", None)


# ---------------------------------------------------------------- reports


def report(folder: Path, **changes) -> str:
    """The examples' report, as if made of their files of today, with changes of its request; paths are as
    they were written."""
    data = json.loads(REPORT.read_text())
    data["request"] |= changes
    asked = data["request"]["candidates"]
    if isinstance(asked, list) and all(os.path.exists(place) for place in asked):
        judged = judged_files(KernelsRequest(candidates=tuple(asked))) if asked else ()
        data["candidates"] = [one.model_dump(mode="json") for one in judged]
    path = folder / "report.json"
    path.write_text(json.dumps(data))
    return str(path)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A head called `faster`, as one of the report's candidates is."""
    shutil.copytree(EXAMPLES / "faster", tmp_path / "faster")
    return str(tmp_path / "faster")


def test_the_candidates_of_a_report(tmp_path: Path, mine: str) -> None:
    path = report(tmp_path, candidates=[FASTER])
    found = compared(mine, path, Filters())
    (pair,) = found.pairs
    assert (pair.head.layers, pair.base.layers) == ((Path(mine),), (EXAMPLES / "faster",))
    assert any("measured again" in note for note in found.notes)
    assert found.base == f"the candidates of {shown(path)}"


def test_what_passed_in_a_report_and_is_gone_is_missing(tmp_path: Path, mine: str) -> None:
    path = report(tmp_path, candidates=[FASTER], targets=[])
    data = json.loads(Path(path).read_text())
    there = {case.id for case in registry.cases("L1/rms_norm", "tiny")}  # the report may be older than some
    data["rows"] = [row for row in data["rows"] if row["case"] in there]
    row = next(row for row in data["rows"] if row["candidate"] == "faster" and row["verdict"] == "PASSED")
    known = registry.cases("L1/glu", "tiny")[0].id
    data["rows"] += [
        row | {"task": "L1/glu", "case": known},
        row | {"task": "L1/glu", "case": "unheard-of"},
    ]
    Path(path).write_text(json.dumps(data))
    found = compared(mine, path, Filters())
    (pair,) = found.pairs
    assert set(pair.base.works) - set(pair.head.works) == {("L1/glu", known)}
    assert any(note.startswith("1 rows of the report") for note in found.notes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"candidates": []}, "names no folders of candidates"),
        ({"candidates": ["gone/away"]}, "gone/away is not here"),
        ({"candidates": [str(EXAMPLES)]}, ""),
    ],
)
def test_reports_without_candidates(tmp_path: Path, mine: str, changes: dict, told: str) -> None:
    path = report(tmp_path, **changes)
    if not told:  # three candidates, one of them called as the head: the others are missing
        assert {pair.name: bool(pair.head.works) for pair in compared(mine, path).pairs} == {
            "faster": True, "slower": False, "wrong": False,
        }  # fmt: skip
        return
    with pytest.raises(UsageError, match=told):
        compared(mine, path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"candidates": 3}, r"request\.candidates: Input should be a valid tuple"),
        ({"candidates": [FASTER], "level": "first"}, r"request\.level: Input should be a valid integer"),
    ],
)
def test_a_request_that_fk_kernels_did_not_write(tmp_path: Path, mine: str, changes: dict, told: str) -> None:
    with pytest.raises(FileFormatError, match=told):
        compared(mine, report(tmp_path, **changes))


def test_files_that_changed_since_the_report_are_no_base(tmp_path: Path, mine: str) -> None:
    shutil.copytree(EXAMPLES / "slower", tmp_path / "base")
    path = report(tmp_path, candidates=[str(tmp_path / "base")])
    assert compared(mine, path).pairs
    (tmp_path / "base" / "helper.py").write_text("NEW = 1\n")
    with pytest.raises(
        UsageError, match=r"not those that it judged any more: base \(.*base\)\. Judge it anew"
    ):
        compared(mine, path)


def test_a_candidate_that_is_gone_since_the_report(tmp_path: Path, mine: str) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "all")
    path = report(tmp_path, candidates=[str(tmp_path / "all")])
    shutil.rmtree(tmp_path / "all" / "wrong")
    with pytest.raises(UsageError, match=r"wrong \(is gone\)"):
        compared(mine, path)


def test_a_report_that_does_not_say_what_it_judged(tmp_path: Path, mine: str) -> None:
    path = Path(report(tmp_path, candidates=[FASTER]))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"candidates": []}))
    with pytest.raises(UsageError, match=r"an older fk wrote it.*fk kernels --candidates DIR --json"):
        compared(mine, str(path))


def test_a_report_of_the_head_itself_has_no_base(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--base origin/main"):
        compared(FASTER, report(tmp_path, candidates=[FASTER]))


def test_other_files_are_no_base(tmp_path: Path, mine: str) -> None:
    with pytest.raises(UsageError, match="a report of `fk eval`, not of `fk kernels`"):
        compared(mine, str(ROOT / "benchmarks" / "cpu" / "eval_faster.json"))
    with pytest.raises(FileFormatError, match="No such file"):
        compared(mine, str(tmp_path / "none.json"))


# ---------------------------------------------------------------- revisions


def test_two_revisions(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    with opened("first", "second", RMS_NORM, "tiny") as found:
        (pair,) = found.pairs
        new = set(pair.head.works) - set(pair.base.works)
        assert len(new) == 1, "the second revision has one case less"
        assert set(pair.base.works) < set(pair.head.works)
        for version, marked in ((pair.head, False), (pair.base, True)):
            assert version.source is not None
            assert ("MARK = 'second'" in (version.source.parent / KERNEL).read_text()) == marked
        assert not pair.head.layers
        assert not pair.base.is_baseline
    (pair,) = compared("second", "first").pairs
    assert set(pair.base.works) - set(pair.head.works) == new, "the other way round it is missing"


def test_a_head_does_not_make_its_own_exam_easier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that the head declares held-out is still timed, as the base has it."""

    def untimed(cases: str) -> str:
        lines = [json.loads(line) for line in cases.splitlines()]
        return "".join(json.dumps(line | {"timed": False}) + "\n" for line in lines)

    make_repository(tmp_path, {CASES: untimed})
    monkeypatch.chdir(tmp_path)
    found = compared("second", "first")
    assert any(work.case.timed for work in found.pairs[0].head.works.values())
    assert any("defined anew in second" in note for note in found.notes)


REFERENCE = "src/fastkernels/kernels/rms_norm.py"


@pytest.mark.parametrize(
    ("changed", "told"), [(KERNEL, None), (REFERENCE, "rms_norm.py"), ("README.md", None)]
)
def test_an_oracle_that_is_not_the_base_s_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, told: str | None
) -> None:
    """The oracle is that of the `fk` that runs; an implementation is none of it."""
    (tmp_path / "README.md").write_text("")
    make_repository(tmp_path, {changed: lambda code: f"{code}\nMARK = 1\n"})
    monkeypatch.chdir(tmp_path)
    found = [note for note in compared("first", "second").notes if "oracle" in note]
    assert len(found) == (told is not None)
    assert all(f"among them kernels/{told}" in note and "run the fk of second (" in note for note in found)


def test_revisions_and_folders_do_not_mix(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    with pytest.raises(UsageError, match="--base origin/main"):
        compared("first")
    with pytest.raises(UsageError, match="two folders, or two revisions"):
        compared("first", FASTER)
    with pytest.raises(NotFoundError, match="Did you mean L1/rms_norm"):
        compared("second", "first", Filters(targets=("rmsnorm",)))
