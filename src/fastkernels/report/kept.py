"""What a run leaves in the user's state folder beside its entry in MLflow; its last lines, which say where.

    reports/2026-11-28T221640-kernels-faster.html     the page (page.py)
    reports/2026-11-28T221640-kernels-faster.json     the report, for fk report --compare

The setting `tracking` (FK_TRACKING=0) switches both off.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from fastkernels.errors import UsageError
from fastkernels.layout import shown
from fastkernels.report import commands, files, html, json, mlflow, page
from fastkernels.settings import resolve, state_dir

_MOST_CHARACTERS = 100  # of a name, which lists candidates


def keep(report: mlflow.Logged) -> Path | None:
    """The page; None where it cannot be written, which is a warning on stderr, or where nothing is kept."""
    if not resolve().tracking:
        return None
    begun = report.environment.started_at[:19].replace(":", "")
    named = re.sub(r"[^\w.+-]+", "-", f"{begun}-{report.kind}-{mlflow.name(report)}")
    name = named[:_MOST_CHARACTERS].strip("-")
    place = state_dir() / "reports" / f"{name}.html"
    try:
        files.write(json.dumps(report), place.with_suffix(".json"), "page")
        files.write(html.text(page.of([(f"{name}.json", report)])), place, "page")
    except UsageError as error:
        print(f"warning: not kept: {error}. FK_STATE_DIR names another folder", file=sys.stderr)
        return None
    return place


def closing(report: mlflow.Logged, kept: Path | None, run: str | None) -> Iterable[str]:
    """The last lines: the page, the run, the next command."""
    if kept is not None:
        yield f"page  {shown(kept)}"
    if run is not None:
        yield f"run   {run}  in {mlflow.place()}"
    if following := commands.following(report):
        yield f"next  {following}"
