"""`fk doctor`: this machine, what works on it and how to get what does not, every setting with its origin."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fastkernels.cli.output import emit_json, heading, json_option, table


@click.command(epilog="Examples: fk doctor · fk doctor --json - | jq '.checks[] | select(.works | not)'")
@json_option
def command(json_path: str | None) -> None:
    """Show the machine, what works here, how to get what does not, and every setting with its origin."""
    click.echo("Looking around (some seconds) ...", err=True)
    import torch

    from fastkernels.cli.diagnosis import checks
    from fastkernels.measure.environment import environment

    machine = environment("cuda" if torch.cuda.is_available() else "cpu").model_dump(mode="json")
    found = [asdict(check) for check in checks()]
    settings = _settings()
    if json_path:
        emit_json({"environment": machine, "checks": found, "settings": settings}, json_path)
        return
    click.secho("Machine", bold=True)
    libraries = machine.pop("libraries")
    table(
        ("fact", "value"),
        [(name, value) for name, value in (machine | libraries).items() if value not in (None, [])],
    )
    heading("What works here")
    table(
        ("works", "what", "detail", "to get it"),
        [("yes" if c["works"] else "no", c["name"], c["detail"], c["fix"]) for c in found],
    )
    heading("Settings (flag > FK_* variable > [tool.fastkernels] in pyproject.toml > registry > default)")
    table(("setting", "value", "from"), [(s["name"], s["value"], s["origin"]) for s in settings])


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
