"""`fk report` of a report of `fk tune`."""

from pathlib import Path

from click.testing import CliRunner

from fastkernels.cli import main
from fastkernels.report import json
from tests.unit.cli.test_tune import report


def test_a_tuning_report_is_shown_and_leads_to_a_table(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    json.write(report(10.25, 5.0), path)
    found = CliRunner().invoke(main, ["report", str(path)])
    assert found.exit_code == 0, found.output
    assert "within 3 % of the best: 0.0 % of 1 choices" in found.stdout
    assert f"A table from it: fk tune --from {path}" in found.stdout
    for more in ([str(path)], ["--html", str(tmp_path / "page.html")]):
        refused = CliRunner().invoke(main, ["report", str(path), *more])
        assert refused.exit_code == 2
        assert f"fk tune --from {path} makes a table of it" in refused.output
