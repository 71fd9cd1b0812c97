"""Models with named outputs behind one face: programs over stages that a model declares, a model that has
only `forward`, what is finished later, refusals."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fastkernels import Model as PublicModel
from fastkernels.engine import model as model_module
from fastkernels.engine.model import Model
from fastkernels.errors import RequestError, UsageError
from fastkernels.nn.program import Call, Program, Stage
from tests.unit.engine.test_encoder import images


class Plain(nn.Module):
    """Only a forward, and outputs in the order of the architecture's names."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, ids: Tensor, features: Tensor, scale: float = 1) -> tuple[Tensor, Tensor]:
        assert features.dtype == self.weight.dtype
        return ids.sum(1), scale * features * self.weight


class Ragged:
    """Rows of any length behind each other, with their lengths: a batching of the model's own."""

    def key(self, args: tuple[Any, ...]) -> Hashable:
        (row,) = args
        if not len(row):
            raise RequestError("an empty row")
        return row.dtype

    def join(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        rows = [row for (row,) in calls]
        return [torch.cat(rows), torch.tensor([len(row) for row in rows])]


class Staged(nn.Module):
    """Two stages in turn, one of them looped; pixels are made of the outputs afterwards."""

    def stages(self) -> dict[str, Stage]:
        return {
            "sums": Stage(Ragged()),
            "double": Stage(most=2),
            "square": Stage(),
        }

    def program(self, row: Tensor, times: int) -> Program:
        total = yield Call("sums", row)
        return {"total": (yield Call("double", total, loop=times))}

    def finish(self, outputs: dict[str, Tensor], times: int, **_: Any) -> Program:
        return {"pixels": (yield Call("square", outputs["total"])), "times": torch.tensor(times)}

    def sums(self, rows: Tensor, lengths: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in rows.split(lengths.tolist())])

    def double(self, x: Tensor) -> Tensor:
        return 2 * x

    def square(self, x: Tensor) -> Tensor:
        return x * x


@pytest.fixture
def faced(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Model of a module: a registered architecture's source, whose outputs have other names."""

    def faced(module: nn.Module, outputs: tuple[str, ...] = ("total",), **options: Any) -> Model:
        monkeypatch.setattr(model_module, "load_model", lambda *_: module)
        model = Model("siglip2", config="tiny", device="cpu", dtype="float64", **options)
        monkeypatch.setattr(type(model.source), "outputs", outputs)
        return model

    return faced


ROWS = [{"row": torch.arange(n, dtype=torch.float64), "times": 3} for n in (2, 5, 3)]


def test_calls_of_a_stage_share_launches(faced):
    model = faced(Staged())
    assert [one["total"].item() for one in model.run(ROWS)] == [8.0, 80.0, 24.0]
    assert {name: stage.batch_sizes for name, stage in model.stages.items()} == {
        "sums": [3],
        "double": [2, 1],
        "square": [],
    }
    assert model.stats()["requests"] == 3
    assert model.stats()["double"]["calls"] == 6, "three turns of each launch"
    alone = faced(Staged(), max_batch=1)
    assert [one["total"].item() for one in alone.run(ROWS)] == [8.0, 80.0, 24.0]
    assert alone.stages["sums"].batch_sizes == [1, 1, 1]


def test_what_is_finished_later(faced):
    model = faced(Staged())
    outputs = [{"total": np.array(8.0)}, {"total": torch.tensor(3.0)}]
    found = model.finish(outputs, ROWS[:2])
    assert [one["pixels"].item() for one in found] == [64.0, 9.0]
    assert [one["times"].item() for one in found] == [3, 3]


def test_a_model_with_only_a_forward_gets_its_inputs_stacked(faced):
    model = faced(Plain(), outputs=("total", "scaled"))
    requests = [
        {"ids": np.array([1, 2]), "features": np.array([1, 2, 3], np.float32), "scale": s} for s in (2, 2, 5)
    ]
    requests[1]["ids"] = torch.tensor([3, 4])
    found = model.run(requests)
    assert [one["total"].item() for one in found] == [3, 7, 3]
    assert [one["scaled"].tolist() for one in found] == [[2, 4, 6], [2, 4, 6], [5, 10, 15]]
    assert model.stages["forward"].batch_sizes == [2, 1], "another scale is another launch"


def test_refused_requests_do_no_harm(faced):
    model = faced(Staged())
    with pytest.raises(RequestError, match="request 1: an empty row"):
        model.run([ROWS[0], {"row": torch.zeros(0), "times": 1}])
    assert model.stages["sums"].batch_sizes == []
    first, refused, last = model.run([ROWS[0], {"row": torch.zeros(0), "times": 1}, ROWS[2]], errors="return")
    assert isinstance(refused, RequestError)
    assert (first["total"], last["total"]) == (8, 24)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"row": torch.zeros(1)}, "missing a required argument: 'times': siglip2:tiny takes row, times"),
        ({"row": torch.zeros(1), "times": 1, "seed": 2}, "unexpected keyword argument 'seed'"),
        ([1, 2], "a request is a mapping of inputs by name, not"),
    ],
)
def test_requests_of_other_inputs_are_named(request_: Any, says: str, faced):
    with pytest.raises(RequestError, match=says):
        faced(Staged()).run([request_])


def test_a_registered_model_by_names():
    model = PublicModel("siglip2", config="tiny", device="cpu")
    (found,) = model.run([{"image": images([(48, 48)])[0].numpy()}])
    assert found["features"].shape == (64,)
    with pytest.raises(
        UsageError, match="llama:tiny answers with tokens: Model serves models that answer with"
    ):
        Model("llama", config="tiny", device="cpu")
