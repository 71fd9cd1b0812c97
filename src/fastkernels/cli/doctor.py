"""`fk doctor`: this machine, what works on it and how to get what does not, every setting with its origin."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fastkernels.cli.output import emit_json, folded, heading, json_option, table


@click.command(epilog="Examples: fk doctor · fk doctor --json - | jq '.checks[] | select(.works | not)'")
@json_option
def command(json_path: str | None) -> None:
    """Show the machine, what works here, how to get what does not, and every setting with its origin."""
    click.echo("Looking around (some seconds) ...", err=True)
    import torch

    from fastkernels.cli.diagnosis import checks, libraries
    from fastkernels.measure.environment import environment

    machine = environment("cuda" if torch.cuda.is_available() else "cpu").model_dump(mode="json")
    found = [asdict(check) for check in checks()]
    production = [asdict(library) for library in libraries()]
    settings = _settings()
    if json_path:
        told = {"environment": machine, "checks": found, "libraries": production, "settings": settings}
        emit_json(told, json_path)
        return
    click.secho("Machine", bold=True)
    versions = machine.pop("libraries")
    facts = [(name, value) for name, value in (machine | versions).items() if value not in (None, [])]
    folded(("fact", "value"), facts)
    heading("What works here")
    folded(
        ("works", "what", "detail"),
        [("yes" if c["works"] else "no", c["name"], _with_fix(c["detail"], c["fix"])) for c in found],
    )
    heading("Libraries of production kernels, and the kernels that they implement or would")
    folded(
        ("library", "installed", "kernels"),
        [(p["name"], p["version"] or "no", _with_fix(", ".join(p["kernels"]), p["fix"])) for p in production],
    )
    heading("Settings (flag > FK_* variable > [tool.fastkernels] in pyproject.toml > registry > default)")
    table(("setting", "value", "from"), [(s["name"], s["value"], s["origin"]) for s in settings])


def _with_fix(detail: str, fix: str) -> str:
    return f"{detail}\nto get it: {fix}" if fix else detail


def _settings() -> list[dict[str, Any]]:
    from fastkernels.settings import Settings, candidates_dir, resolve, state_dir

    settings = resolve()
    shown = {"candidates": str(candidates_dir()), "state_dir": str(state_dir())}
    return [
        {
            "name": name,
            "value": shown.get(name, getattr(settings, name)),
            "origin": _short(settings.origin(name)),
        }
        for name in Settings.model_fields
    ]


def _short(origin: str) -> str:
    home = str(Path.home())
    return f"~{origin[len(home) :]}" if origin.startswith(home + os.sep) else origin
