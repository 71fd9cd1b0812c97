"""What is written of cases is read as it was, whatever they have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastkernels import registry
from fastkernels.errors import UsageError
from fastkernels.records import REGISTRY, Batch, Case, Provenance, Routing, TensorSpec, View
from fastkernels.registry.case_files import read_cases
from fastkernels.registry.case_lines import render
from fastkernels.registry.schema import TaskEntry

ENTRY = TaskEntry(
    id="L1/mix", summary="", variants={"default": "Mix", "wide": "Mix"}, mirrors=(), label="K{size}"
)
SPEC = TensorSpec(shape=(8, 4), dtype="float32")


def case(name: str, init: dict[str, Any], inputs: dict[str, Any], **facts: Any) -> Case:
    """Of architecture `a` in configuration `tiny`: its id has that around the name."""
    phase, variant = facts.pop("phase", "decode"), facts.get("variant", "default")
    by = facts.pop("provenance", Provenance(architecture="a", config="tiny", phase=phase))
    whole = name if by.architecture == REGISTRY else f"a-tiny-{name}-f32"
    whole = whole if variant == "default" else f"{variant}-{whole}"
    facts = {"size": "tiny", "dtype": "float32", "timed": phase != "held-out"} | facts
    return Case(id=whole, task="L1/mix", init=init, inputs=inputs, provenance=by, **facts)


def text_of(cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """The lines of the file; it is read as the cases that were written."""
    path = folder / "L1" / "mix.jsonl"
    path.parent.mkdir()
    path.write_text(render(ENTRY, cases))
    assert [c.model_dump_json() for c in read_cases(path)] == [c.model_dump_json() for c in cases]
    return [json.loads(line) for line in path.read_text().splitlines()]


CASES = {
    "one": [case("T8-K4", {"size": 4}, {"x": SPEC})],
    "a name of its own": [case("T8-K4", {"size": 4}, {"x": SPEC}), case("odd", {"size": 4}, {"x": SPEC})],
    "1 and true": [
        case(str(n), {"size": 4, "flag": n}, {"x": SPEC, "y": v}) for n, v in ((1, 1.0), (True, 1))
    ],
    "what comes and goes": [
        case("p", {"size": 4, "eps": 1}, {"x": SPEC, "y": SPEC, "z": None}),
        case("q", {"size": 4}, {"x": SPEC, "z": SPEC}),
        case("r", {"size": 4, "eps": 2}, {"x": SPEC, "y": None, "z": SPEC}),
    ],
    "names of lines": [
        case(
            name,
            {"size": 4, "config": {"T": n}, "dtype": "t", "T": n, "id": n},
            {"x": SPEC, "batch": n, "form": n},
        )
        for name, n in (("p", 1), ("q", 2))
    ],
    "of one name": [case(name, {"size": n, "x": n}, {"x": n, "y": SPEC}) for name, n in (("p", 1), ("q", 2))],
    "views": [
        case(str(size), {"size": 4}, {"x": SPEC.model_copy(update={"view": view})})
        for size in (96, 100)
        for view in [View(storage="x", size=size, strides=(12, 1), offset=4)]
    ],
    "batches": [
        case(str(n), {"size": 4}, {"x": SPEC}, batch=batch)
        for n, batch in enumerate(
            (
                Batch(rows=((8, 1, 5),)),
                Batch(rows=((2, 1, 5), (1, 7, 9))),
                Batch(rows=((8, 1, 5),), block_size=4),
                Batch(grids=((1, 2, 4),), text=3),
                Batch(images=(2, 4, 4)),
                Batch(images=(2, 4, 4), rows=((2, 4, 4),)),
                None,
            )
        )
    ],
    "variants and phases": [
        case(f"{variant}-{phase}-{n}", {"size": 4}, {"x": SPEC}, variant=variant, phase=phase, calls=n)
        for phase in ("prefill", "held-out", "decode")
        for n in (1, 2, 2, 2)[phase == "decode" :]
        for variant in ("default", "wide")
    ][::2],
    "an init argument with a shape": [
        case(name, {"size": 4, "part": {"shape": [n], "of": 1}}, {"x": SPEC})
        for name, n in (("p", 1), ("q", 2))
    ],
    "rare facts": [
        case("p", {"size": 4}, {"x": SPEC}, ranks=2, routing=Routing(top_k=1, experts=2)),
        case("q", {"size": 4}, {"x": SPEC}, phase="held-out", timed=True),
        case("r", {"size": 4}, {"x": SPEC}, timed=False),
        case(
            "s",
            {},
            {"x": SPEC},
            provenance=Provenance(architecture=REGISTRY, config="tiny", phase="held-out"),
        ),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    cases = list({c.id: c for c in CASES[name]}.values())
    text_of(cases, tmp_path)


def test_a_case_says_what_its_form_does_not(tmp_path: Path) -> None:
    specs = [TensorSpec(shape=(tokens, 4), dtype="float32") for tokens in (8, 2)]
    first, last = (case(f"T{s.shape[0]}-K4", {"size": 4}, {"x": s}) for s in specs)
    assert text_of([first, last], tmp_path) == [
        {
            "form": "default",
            "id": "T{T}-K{size}",
            "init": {"size": 4},
            "inputs": {"x": {"shape": ["T", "size"]}},
        }
        | {"inputs": {"x": ["T", "size"]}},
        {"architecture": "a", "config": "tiny", "size": "tiny", "dtype": "float32", "phase": "decode"},
        {"T": 8},
        {"T": 2},
    ]


def test_an_id_that_does_not_say_who_makes_the_call(tmp_path: Path) -> None:
    wrong = case("T8-K4", {"size": 4}, {"x": SPEC}).model_copy(update={"id": "b-tiny-T8-K4-f32"})
    with pytest.raises(UsageError, match="a-tiny-"):
        text_of([wrong], tmp_path)


def test_cases_share_no_section_of_a_configuration() -> None:
    """A module may write where its configuration lies: no other case may see that."""
    first, second = registry.cases("L1/rope")[:2]
    assert first.init["rope_parameters"] == second.init["rope_parameters"]
    assert first.init["rope_parameters"] is not second.init["rope_parameters"]
