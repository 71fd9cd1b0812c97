"""The published JSON Schema of reports: what `--json` writes. docs/schema/*.json are these texts."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastkernels.records import TuneReport
from fastkernels.report.json import KINDS

Kind = Literal["kernels", "eval", "gate", "audit", "tuning"]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kind: Kind) -> dict[str, Any]:
    """JSON Schema of a report; every field that is written is required."""
    record = TuneReport if kind == "tuning" else KINDS[kind]
    found = record.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": _DIALECT, **found, "title": f"fk {'tune' if kind == 'tuning' else kind} report"}


def text(kind: Kind) -> str:
    return json.dumps(schema(kind), indent=2) + "\n"
