"""A gate as table, JSON, JUnit XML and Markdown; the same conclusions everywhere."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as xml

import jsonschema
import pytest
from click.testing import CliRunner

from fastkernels import cli
from fastkernels.errors import UsageError
from fastkernels.gate import gate
from fastkernels.measure.environment import environment
from fastkernels.records import Failure, GateLimits, GateReport, GateRow, GateSummary, Look
from fastkernels.report import exit_code, files, gate_markdown, junit, mlflow, schema, table
from fastkernels.report import json as reports
from fastkernels.report.markdown import MAX_CHARACTERS

EVIL = "<script>|`x`| @everyone \x1b[31m\x00 </pre>\n\n# heading\n```\n"


def look(speedup: float = 0.95) -> Look:
    return Look(
        speedup=speedup, speedup_ci=(speedup - 0.01, speedup + 0.01), base_us=20.0, head_us=20.0 / speedup,
        noise_pct=1.5, samples=40,
    )  # fmt: skip


def row(case: str, verdict: str, *looks: Look, **changes: Any) -> GateRow:
    facts: dict[str, Any] = {
        "task": "L1/rms_norm", "variant": "default", "case": case, "candidate": "mine", "verdict": verdict,
        "reason": f"because of {case}", "contract": "host", "head": "PASSED", "base": "PASSED",
        "looks": looks,
    }  # fmt: skip
    return GateRow(**{**facts, **changes})


BROKEN = {
    "head": "WRONG(value)",
    "failure": Failure(message=EVIL, file="cand/L1/glu.py", line=3, output=EVIL, trace="File harness.py"),
}


@pytest.fixture
def report() -> GateReport:
    return a_gate()


def a_gate() -> GateReport:
    rows = (
        row("c-fast", "FAST", look(1.2), look(1.21)), row("c-same", "SAME", look(1.0)),
        row("c-held-out", "SAME", timed=False), row("c-slow", "SLOW", look(0.95), look(0.94), look(0.96)),
        row("c-unsure", "AMBIGUOUS", Look(problem="UNSTABLE: busy")), row("c-new", "NEW", base=None),
        row("c-missing", "MISSING", head=None),
        row("c-broken", "BROKEN", task="L1/glu", variant="gelu", **BROKEN),
    )  # fmt: skip
    counts: dict[Any, int] = {
        "FAST": 1, "SAME": 2, "SLOW": 1, "AMBIGUOUS": 1, "NEW": 1, "MISSING": 1, "BROKEN": 1
    }  # fmt: skip
    return GateReport(
        environment=environment("cpu"), request={"head": "mine", "budget_s": 0.5}, head="my|head",
        base="origin/main",
        limits=GateLimits(max_regression_pct=3, min_regression_us=0.3, min_speedup=1.1), rows=rows,
        notes=("a note",), outcome="failed",
        summary=GateSummary(
            verdicts=counts, geomean_speedup=1.03, geomean_ci=(1.01, 1.05), min_speedup="missed", wall_s=61.2
        ),
    )  # fmt: skip


def test_json_comes_back_and_follows_its_schema(report: GateReport, tmp_path) -> None:
    reports.write(report, tmp_path / "gate.json")
    assert reports.load(tmp_path / "gate.json") == report
    jsonschema.validate(json.loads(reports.dumps(report)), schema.schema("gate"))


def test_the_table_tells_what_and_why(report: GateReport) -> None:
    text = table.text(report)
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("c-")}
    assert "c-held-out" not in lines
    assert "1 held-out shape right on both sides, not timed" in text
    assert "+5.3 %" in lines["c-slow"], "the middle look of three"
    assert lines["c-slow"].endswith("because of c-slow")
    assert "MISSING" in lines["c-missing"]
    assert "L1/glu:gelu" in text
    assert "failed: 1 FAST, 2 SAME, 1 SLOW, 1 AMBIGUOUS, 1 NEW, 1 MISSING, 1 BROKEN" in text
    assert "geometric mean of the speed-ups 1.030 (1.010 .. 1.050)" in text
    assert "at least 1.1 was asked for: missed" in text
    assert "not a GPU result" in text
    assert "a note" in text
    assert "1 row is AMBIGUOUS: neither passed nor failed" in text
    assert "a larger --budget (now 0.5 s a look)" in text


def test_contracts_never_share_a_table(report: GateReport) -> None:
    eager = row("c-eager", "SLOW", look(0.8), contract="eager")
    mixed = report.model_copy(update={"rows": (report.rows[0], eager, *report.rows[1:])})
    text = table.text(mixed)
    hosts, eagers = text.index("L1/rms_norm · contract host"), text.index("L1/rms_norm · contract eager")
    assert hosts < text.index("c-same") < eagers < text.index("c-eager")
    assert "beyond the noise (at least 8 % in eager)" in text
    assert "| L1/rms\\_norm · contract eager |".replace("\\_", "&#95;") in gate_markdown.text(mixed)
    for alone in (table.text(report), gate_markdown.text(report)):
        assert "· contract" not in alone
        assert "beyond the noise, and again" in alone


@pytest.mark.parametrize(("outcome", "code"), [("passed", 0), ("failed", 1), ("unclear", 3)])
def test_exit_codes(report: GateReport, outcome: str, code: int) -> None:
    assert exit_code(report.model_copy(update={"outcome": outcome})) == code
    assert exit_code(report.model_copy(update={"outcome": outcome, "complete": False})) == 130


def test_junit_counts_failures_and_errors(report: GateReport) -> None:
    root = xml.fromstring(junit.text(report).encode())
    assert {key: root.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "9", "failures": "4", "errors": "1",
    }  # fmt: skip
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["L1/rms_norm", "L1/glu:gelu", "gate"]
    found = {
        case.get("name", "").split()[0]: child.tag + " " + child.get("type", "")
        for case in root.iter("testcase")
        for child in case
        if child.tag != "system-out"
    }
    assert found == {
        "c-slow": "failure SLOW", "c-missing": "failure MISSING", "c-broken": "failure BROKEN",
        "c-unsure": "error AMBIGUOUS", "min-speedup": "failure min-speedup",
    }  # fmt: skip
    out = next(c for c in root.iter("testcase") if c.get("name") == "c-slow [mine]").findtext("system-out")
    assert out is not None
    assert out.count("noise 1.50 %") == 3, "every look is there"


def test_a_lost_cuda_graph_is_told_everywhere(report: GateReport) -> None:
    """The head is right; its reason is all that says what is wrong with it."""
    lost = "the base can be captured in a CUDA graph, the head cannot: <waits>"
    seen = look(1.0).model_copy(update={"lost": lost, "base_capture": "yes", "head_capture": "no"})
    broken = row("c-lost", "BROKEN", seen, seen, contract="eager", reason=f"{lost} (in 2 of 2 looks)")
    report = report.model_copy(update={"rows": (broken,)})
    assert lost in table.text(report)
    assert json.loads(reports.dumps(report))["rows"][0]["looks"][0]["head_capture"] == "no"
    (failure,) = (
        c for c in xml.fromstring(junit.text(report).encode()).iter("failure") if c.get("type") == "BROKEN"
    )
    assert lost in (failure.get("message") or "")
    assert "the head cannot: &lt;waits&gt;" in gate_markdown.text(report).replace("&#58;", ":")


def test_an_interrupted_gate_is_an_error_in_junit(report: GateReport) -> None:
    cut_off = report.model_copy(update={"complete": False, "outcome": "unclear"})
    for some in (cut_off, cut_off.model_copy(update={"rows": ()})):
        root = xml.fromstring(junit.text(some).encode())
        (found,) = [case for case in root.iter("error") if case.get("type") == "interrupted"]
        assert "interrupted" in (found.get("message") or "")
        assert len([suite for suite in root if suite.get("name") == "gate"]) == 1


def test_junit_takes_whatever_a_candidate_prints(report: GateReport) -> None:
    text = junit.text(report)
    assert "\x00" not in text
    assert "\x1b" not in text
    broken = next(c for c in xml.fromstring(text.encode()).iter("failure") if c.get("type") == "BROKEN")
    assert broken.text is not None
    assert "<script>" in broken.text, "kept as text"


def test_markdown_shows_what_fails_first_and_folds_the_rest(report: GateReport) -> None:
    text = gate_markdown.text(report)
    assert text.startswith("### ❌ fk gate failed: 1 FAST")
    shown, _, folded = text.partition("other rows</summary>")
    assert all(f"c-{name}" in shown for name in ("slow", "unsure", "missing", "broken"))
    assert all(f"c-{name}" in folded and f"c-{name}" not in shown for name in ("fast", "same", "new"))
    assert "c-held-out" not in text
    assert "**SLOW**" in shown
    assert "CPU: not a GPU result" in shown


def test_markdown_escapes_what_others_wrote(report: GateReport) -> None:
    text = gate_markdown.text(report)
    assert "<script>" not in text
    assert "@everyone" not in text
    assert "my|head" not in text
    assert "\n# heading" not in text or "<pre>" in text.split("\n# heading")[0]
    inside = text[text.index("<pre>") : text.index("</pre>")]
    assert "\n\n" not in inside, "a blank line would end the HTML block"
    table_rows = [line for line in text.splitlines() if line.startswith("| L1")]
    assert {line.count("|") for line in table_rows} == {9}


def test_markdown_fits_a_comment(report: GateReport) -> None:
    many = tuple(row(f"c-slow-{n}", "SLOW", look()) for n in range(5000))
    text = gate_markdown.text(report.model_copy(update={"rows": many}))
    assert len(text) < 65_536
    assert "more rows: see the JSON report" in text
    output = Failure(message="x" * 100_000, output="y" * 100_000)
    broken = tuple(row(f"c-{n}", "BROKEN", head="CRASHED", failure=output) for n in range(50))
    text = gate_markdown.text(report.model_copy(update={"rows": broken}))
    assert len(text) < 65_536
    assert "45 more failures" in text


@pytest.mark.parametrize("size", [10, 400, 3000, 100_000])
def test_markdown_is_never_cut_within_a_tag(report: GateReport, size: int) -> None:
    evil = '<">&' * size
    failure = Failure(message=evil, output=evil, file=evil)
    broken = tuple(row(f"c-{n}{evil}", "BROKEN", failure=failure, reason=evil) for n in range(9))
    same = tuple(row(f"c-same-{n}", "SAME", look(), reason=evil) for n in range(200))
    changes = {"rows": (*broken, *same), "notes": (evil,) * 90, "head": evil, "base": evil}
    text = gate_markdown.text(report.model_copy(update=changes))
    assert len(text) <= MAX_CHARACTERS
    for tag in ("details", "summary", "pre"):
        assert text.count(f"<{tag}>") == text.count(f"</{tag}>")
    assert not re.search(r"&(?!#?\w+;)", text), "an entity is cut"
    assert all(line.endswith(" |") for line in text.splitlines() if line.startswith("|") and "--" not in line)
    assert "more failures: see the JSON" in text


def test_a_failure_names_its_candidate(report: GateReport) -> None:
    both = tuple(row("c", "BROKEN", candidate=name, **BROKEN) for name in ("mine", "yours"))
    summaries = re.findall(
        r"<summary>(.*?)</summary>", gate_markdown.text(report.model_copy(update={"rows": both}))
    )
    assert [re.search(r"\((\w+)\)$", found).group(1) for found in summaries] == ["mine", "yours"]


def test_a_regression_that_hides_in_the_noise_is_seen_beside_the_verdict(report: GateReport) -> None:
    loud = row("c-loud", "SAME", look(1.0).model_copy(update={"noise_pct": 5.25}))
    eager = row("c-eager", "SAME", look(1.0).model_copy(update={"contract": "eager"}), contract="eager")
    unsure = row("c-unsure", "AMBIGUOUS", look(1.0).model_copy(update={"noise_pct": 9.0}))
    report = report.model_copy(update={"rows": (*report.rows[:2], loud, eager, unsure)})
    text = table.text(report)
    told = {
        line.split()[0]: re.findall("±.*? %", line) for line in text.splitlines() if line.startswith("c-")
    }
    assert told == {"c-fast": [], "c-same": [], "c-loud": ["±5.2 %"], "c-eager": ["±8.0 %"], "c-unsure": []}
    assert "| SAME ±8.0 % |" in gate_markdown.text(report)
    assert "SAME ±8.0 %: because of c-eager" in junit.text(report)


def test_a_file_that_cannot_be_written_names_its_flag(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--junit .*file/gate.xml"):
        files.write("text", tmp_path / "file" / "gate.xml", "--junit")


@pytest.mark.parametrize("flag", ["--json", "--junit", "--markdown"])
def test_what_goes_to_stdout_is_alone_there(report: GateReport, monkeypatch, flag: str) -> None:
    monkeypatch.setattr(gate, "run_gate", lambda *_: gate.GateRun(report, ()))
    runner = CliRunner(env={"FK_TRACKING": "0"})
    done = runner.invoke(cli.main, ["gate", "mine", "--device", "cpu", flag, "-"])
    text = {"--json": reports.dumps, "--junit": junit.text, "--markdown": gate_markdown.text}[flag]
    assert (done.exit_code, done.stdout) == (1, text(report))
    assert "fk gate on" in done.stderr
    assert "fk gate on" in runner.invoke(cli.main, ["gate", "mine", "--device", "cpu"]).stdout


def test_the_harness_s_frames_are_shown_where_asked_for(report: GateReport, monkeypatch) -> None:
    monkeypatch.setattr(gate, "run_gate", lambda *_: gate.GateRun(report, ()))
    for words, shows in (["--verbose"], True), ([], False):
        arguments = ["gate", "mine", "--device", "cpu", *words]
        done = CliRunner(env={"FK_TRACKING": "0"}).invoke(cli.main, arguments)
        assert ("File harness.py" in done.stdout) == shows


def test_the_timeout_of_the_command_line_is_the_request_s(report: GateReport, monkeypatch) -> None:
    asked = []

    def run(request: gate.GateRequest, *_: object) -> gate.GateRun:
        asked.append(request.timeout_s)
        return gate.GateRun(report, ())

    monkeypatch.setattr(gate, "run_gate", run)
    for words in (["--timeout", "7.5"], []):
        CliRunner(env={"FK_TRACKING": "0"}).invoke(cli.main, ["gate", "mine", "--device", "cpu", *words])
    assert asked == [7.5, None]


def test_history_has_every_row(report: GateReport) -> None:
    found = mlflow.payload(report, [])
    assert found["experiment"] == "fastkernels-gate"
    assert found["metrics"]["L1/rms_norm:default/c-slow/mine/speedup"] == 0.95
    assert found["metrics"]["summary/SLOW"] == 1
