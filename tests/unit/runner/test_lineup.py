"""What a line-up notes while it captures its parties."""

import random

import pytest

from fastkernels.loader.overlay import Overlay
from fastkernels.measure.chain import ChainPlan
from fastkernels.runner.bench import Bench, Outcome
from fastkernels.runner.lineup import Lineup
from fastkernels.runner.party import Captured
from tests.unit.runner.conftest import small_case, specs_of


class Side:
    """Runs `eager` when it is called and `captured` in a chain; None: it cannot be captured."""

    def __init__(self, eager: str, captured: str | None) -> None:
        self.kernels, self._captured = {"attend": eager}, captured

    def load(self, *_) -> dict:
        return {}

    def give_boxes(self, *_) -> None: ...

    def unload(self) -> None: ...

    def capture(self, plan: ChainPlan) -> Captured:
        kernels = {"attend": self._captured or ""}
        return Captured(captured=self._captured is not None, detail="no", kernels=kernels, outputs=[])


@pytest.mark.parametrize(
    ("baseline", "candidate", "contract", "notes"),
    [
        (("a", "a"), ("a", "a"), "graph", []),
        (("a", "b"), ("a", "a"), "graph", ["captured, the baseline's attend is b; uncaptured it is a"]),
        (("a", None), ("a", "a"), "eager", ["the baseline cannot be captured: no"]),
        (("a", "a"), ("a", None), "eager", ["the candidate cannot be captured: no"]),
    ],
)
def test_what_is_captured(baseline, candidate, contract, notes) -> None:
    case, outcome = small_case("L1/rms_norm"), Outcome(None, "graph")  # pyright: ignore[reportArgumentType]
    bench = Bench("cpu", "graph", 1.0, 1, random.Random(0), Overlay.over_baseline())
    a, c, a2 = Side(*baseline), Side(*candidate), Side(*baseline)
    lineup = Lineup(bench, case, specs_of(case), set(), (a, c, a2), (), {}, outcome, ChainPlan(2))  # pyright: ignore
    assert lineup.open() is None
    assert lineup.capture() is None
    lineup.close()
    assert outcome.contract == contract
    assert [note.partition(": ")[2] for note in outcome.notes] == notes
    assert outcome.links == (2 if contract == "graph" else 1)
