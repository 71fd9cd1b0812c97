"""Mistakes with what requests keep (`State`): read from elsewhere, not zero at the start, kept in few bits.

of the call before      what the row held in another call
skipped                 as if the request began
of another request      what the next request that goes on has kept
not zero at the start   a request that begins finds what its row's former owner left
kept in bfloat16        read and written in a model's dtype

Rows of nobody stay as they are: a change of them is caught by nothing else. What is not written is a mistake
like any other (outputs.py, trivial.py).
R rows of a pool · B rows of the step
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fastkernels.audit.precision import rounded
from fastkernels.audit.subject import Change, Draw, NotApplicable, Outputs, Subject

ROWS = ("step.rows", "step.begun")  # draws that say where the states of requests lie
_BFLOAT16_BITS = 7

# What rows of the pool are taken for: [rows, ...] of a draw, for rows int64.
Values = Callable[[Draw, Tensor], Tensor]


def pool_rows(subject: Subject) -> int:
    """R, the null row included."""
    return next(spec.shape[0] for spec in subject.specs.values() if spec.draw in ("state", "kept"))


def mutants(subject: Subject, name: str) -> list[Change | NotApplicable]:
    """All for the pool `name` of states."""
    begins_B = _begins(subject)
    goes_on_B = ~begins_B
    ways = (
        ("of the call before", goes_on_B, lambda draw, rows: draw.before[name][rows]),
        ("skipped", goes_on_B, lambda draw, rows: torch.zeros_like(draw.inputs[name][rows])),
        ("of another request", goes_on_B, lambda draw, rows: draw.inputs[name][rows.roll(1)]),
        ("not zero at the start", begins_B, lambda draw, rows: _nobodys(subject, draw, name, rows)),
    )
    found: list[Change | NotApplicable] = []
    for what, which_B, values in ways:
        missing = "goes on" if which_B is goes_on_B else "begins"
        if not which_B.any():
            found.append(NotApplicable("mutant", f"{name} {what}", f"no request {missing}"))
        elif what == "of another request" and int(which_B.sum()) == 1:
            found.append(NotApplicable("mutant", f"{name} {what}", "one request goes on"))
        else:
            found.append(_taken_for(subject, name, what, which_B, values))
    return [*found, _kept_in_bfloat16(subject, name)]


def _rows(subject: Subject) -> str:
    """The tensor that says where the states of the step's requests lie."""
    return next(name for wanted in ROWS for name, spec in subject.specs.items() if spec.draw == wanted)


def _begins(subject: Subject) -> Tensor:
    """bool, for each of `_rows`: its request begins in this call."""
    batch, rows = subject.case.batch, subject.specs[_rows(subject)]
    assert batch is not None
    if rows.draw == "step.begun":
        return torch.ones(rows.shape, dtype=torch.bool)
    return torch.tensor([query == seq for query, seq in zip(batch.query_lens, batch.seq_lens)])


def _taken_for(subject: Subject, name: str, what: str, which_B: Tensor, values: Values) -> Change:
    def tensors(draw: Draw) -> Mapping[str, Tensor]:
        pool = draw.inputs[name].clone()
        rows = draw.inputs[_rows(subject)][which_B.to(pool.device)]
        pool[rows] = values(draw, rows)
        return {name: pool}

    # What a request has kept is an input of the call: it must change some output, in this case or another.
    kind = "input" if what == "of the call before" else "mutant"
    return Change(kind, f"{name} {what}", tensors=tensors)


def _nobodys(subject: Subject, draw: Draw, name: str, rows: Tensor) -> Tensor:
    """What the first row of nobody holds, for each of `rows`."""
    pool, owned = draw.inputs[name], set(draw.inputs[_rows(subject)].tolist())
    free = next(row for row in range(1, len(pool)) if row not in owned)
    return pool[free].expand(len(rows), *pool.shape[1:])


def _kept_in_bfloat16(subject: Subject, name: str) -> Change | NotApplicable:
    what = f"{name} kept in bfloat16"
    if subject.specs[name].dtype in ("bfloat16", "float16"):
        return NotApplicable("mutant", what, "that is its dtype")

    def narrow(draw: Draw, pool: Tensor) -> Tensor:
        kept, rows = pool.clone(), draw.inputs[_rows(subject)]
        kept[rows] = rounded(kept[rows], _BFLOAT16_BITS)
        return kept

    def written(draw: Draw, right: Outputs) -> Outputs:
        return {name: narrow(draw, right[name])}

    return Change(
        "mutant",
        what,
        tensors=lambda draw: {name: narrow(draw, draw.inputs[name])},
        outputs=written,
        part_of=subject.part("the part that keeps it"),
    )
