"""Our DLRM against torchrec's DLRM (products of pairs) and DLRM_DCN (cross net), float32 on the CPU, tiny
models with randomised weights; torchrec runs in a process of its own (apart.py)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from fastkernels.baseline.L2.mlp import LayeredMLP
from fastkernels.baseline.L4.dlrmv2 import DLRM
from torch import Tensor, nn

from fastkernels import registry
from fastkernels.loader.weights import find
from fastkernels.nn.bags import Bags
from fastkernels.nn.program import Place
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights
from tests.parity import apart

TOLERANCE = 1e-6  # of a part's largest value, from the architecture's fact sheet
CPU = Place(torch.device("cpu"), torch.float32)
LENGTHS = torch.tensor([[1, 1, 0, 1, 1], [3, 0, 2, 1, 5], [0, 0, 0, 0, 0], [2, 0, 1, 4, 1]])  # [tables, rows]
KINDS = [("dot", "sum"), ("dot", "mean"), ("dcn", "sum"), ("dcn", "mean")]
REAL = ("census", "mlperf-1m")
each_kind = pytest.mark.parametrize(("interaction", "pooling"), KINDS)
Request = tuple[Tensor, Tensor, Tensor]


def config_of(interaction: str, pooling: str) -> dict[str, Any]:
    name = "tiny" if interaction == "dot" else "tiny-dcn"
    return {**registry.architecture("dlrmv2").configs[name].config, "pooling": pooling}


@lru_cache
def ours(interaction: str, pooling: str) -> DLRM:
    """Biases too are random: a cross net's begin at zero, where a misplaced one would not show."""
    model = DLRM(config_of(interaction, pooling))
    random_weights(model, seed=0)
    return model


def request(lengths: Tensor = LENGTHS) -> Request:
    generator = torch.Generator().manual_seed(3)
    rows = ours("dot", "sum").num_embeddings
    dense = torch.randn(lengths.shape[1], 6, generator=generator)
    counts = lengths.sum(1).tolist()
    parts = [torch.randint(high, (count,), generator=generator) for high, count in zip(rows, counts)]
    return dense, torch.cat(parts), lengths


@torch.inference_mode()
def run(model: DLRM, asked: Request) -> dict[str, Tensor]:
    """Each part, from a launch that Bags has made."""
    bags = Bags(model.num_embeddings, model.num_dense, CPU)
    (crossing,) = bags.join([bags.read(asked)])
    dense_CRX, ids_M, offsets = crossing.tensors()
    dense, sparse = model.bottom(dense_CRX[0]), model.embedding_bags(ids_M, offsets)
    if model.is_dot:
        interaction = model.interaction(dense, sparse)
    else:
        interaction = model.interaction(torch.cat((dense[:, None], sparse), 1).flatten(1))
    logits = model(dense_CRX[0], ids_M, offsets)
    return {"dense": dense, "sparse": sparse, "interaction": interaction, "logits": logits}


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1.0))


@pytest.fixture(scope="module")
def torchrec(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """Its parts of each kind, and its names of each real configuration. One process: its import takes
    seconds."""
    dense, values, lengths = request()
    given = {"dense": dense, "values": values, "lengths": lengths}
    asked: dict[Any, Any] = {}
    for kind in KINDS:
        weights = {name: tensor.contiguous() for name, tensor in export_weights(ours(*kind))}
        asked[kind] = {"config": config_of(*kind), "weights": weights, **given}
    asked |= {name: {"config": find("dlrmv2", name).config} for name in REAL}
    found = apart.answer("torchrec_process", list(asked.values()), tmp_path_factory.mktemp("torchrec"))
    return dict(zip(asked, found, strict=True))


@each_kind
@apart.needs("torchrec")
def test_every_part_agrees_with_torchrec(interaction: str, pooling: str, torchrec: dict[Any, Any]):
    wanted, found = torchrec[interaction, pooling], run(ours(interaction, pooling), request())
    assert found.keys() == wanted.keys()
    assert wanted["logits"].std() > 0.1, "weights too small for a strong test"
    assert not wanted["sparse"][:, 2].any(), "a table whose bags are empty gives zeros"
    for name, value in wanted.items():
        assert error(found[name], value) <= TOLERANCE, name


@pytest.mark.parametrize("name", REAL)
@apart.needs("torchrec")
def test_names_and_shapes_of_a_checkpoint_are_torchrecs(name: str, torchrec: dict[Any, Any]):
    with torch.device("meta"):
        places, unnamed = destinations(DLRM(find("dlrmv2", name).config))
    assert not unnamed
    assert {name: place.shape for name, place in places.items()} == torchrec[name]


# ---------------------------------------------------------------- where implementations go wrong


class LowerTriangle(nn.Module):
    def forward(self, h: Tensor, e: Tensor) -> Tensor:
        z = torch.cat((h[:, None], e), 1)
        i, j = torch.tril_indices(z.shape[1], z.shape[1], offset=-1)
        return torch.cat((h, (z @ z.transpose(1, 2))[:, i, j]), 1)


class FeatureMajor(nn.Module):
    """As a merged lookup leaves its results."""

    def __init__(self, bags: nn.Module) -> None:
        super().__init__()
        self.bags = bags

    def forward(self, input: Tensor, offsets: Tensor) -> Tensor:
        found = self.bags(input, offsets)
        return found.transpose(0, 1).reshape(found.shape)


class PaddedWithZero(FeatureMajor):
    """The first row of a table stands for no entry."""

    def forward(self, input: Tensor, offsets: Tensor) -> Tensor:
        self.bags.weight[10] = 0  # of the second table
        return self.bags(input, offsets)


class BiasOutside(nn.Module):
    def __init__(self, cross: Any) -> None:
        super().__init__()
        self.cross = cross

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for v, w in zip(self.cross.v, self.cross.w):
            x = x0 * (v(x) @ w.weight.T) + w.bias + x
        return x


def spoilt(interaction: str, wrong: str) -> DLRM:
    model = DLRM(config_of(interaction, "sum"))
    random_weights(model, seed=0)
    if wrong == "no relu behind the dense layers":
        bottom = LayeredMLP(6, [32, 16], activation_on_last=False)
        bottom.load_state_dict(model.bottom.state_dict())
        model.bottom = bottom
    elif wrong == "relu behind the logit":
        over = LayeredMLP(26 if model.is_dot else 80, [32, 16, 1])
        over.load_state_dict(model.over.state_dict())
        model.over = over
    elif wrong == "lower triangle":
        model.interaction = LowerTriangle()
    elif wrong == "bias outside the product":
        model.interaction = BiasOutside(model.interaction)
    elif wrong == "padding is special":
        model.embedding_bags = PaddedWithZero(model.embedding_bags)
    else:
        model.embedding_bags = FeatureMajor(model.embedding_bags)
    return model


@pytest.mark.parametrize(
    ("interaction", "wrong"),
    [
        ("dot", "no relu behind the dense layers"),
        ("dot", "relu behind the logit"),
        ("dot", "lower triangle"),
        ("dot", "features and samples not turned"),
        ("dcn", "bias outside the product"),
        ("dcn", "padding is special"),
    ],
)
def test_a_wrong_model_would_be_noticed(interaction: str, wrong: str):
    lengths = LENGTHS.clone()
    lengths[1] = 40  # every row of the table is met
    wanted = run(ours(interaction, "sum"), request(lengths))["logits"]
    assert error(run(spoilt(interaction, wrong), request(lengths))["logits"], wanted) > 10 * TOLERANCE


def test_tables_without_their_own_rows_would_be_noticed(monkeypatch):
    model = ours("dot", "sum")
    wanted = run(model, request())["sparse"]
    made = Bags.__init__

    def all_from_zero(self: Bags, *given: Any) -> None:
        made(self, *given)
        self.starts = 0 * self.starts

    monkeypatch.setattr(Bags, "__init__", all_from_zero)
    assert error(run(model, request())["sparse"], wanted) > 10 * TOLERANCE


def test_a_mean_over_nothing_is_zero():
    found = run(ours("dcn", "mean"), request(torch.zeros_like(LENGTHS)))
    assert not found["sparse"].any()
    assert found["logits"].isfinite().all()


# ---------------------------------------------------------------- invariants


def test_the_order_of_a_bag_does_not_matter():
    dense, values, lengths = request()
    begin = int(lengths[0].sum())
    first = int(lengths[1, 0])
    other = values.clone()
    other[begin : begin + first] = values[begin : begin + first].flip(0)
    assert not torch.equal(other, values)
    model = ours("dot", "sum")
    a, b = (run(model, (dense, given, lengths))["logits"] for given in (values, other))
    assert error(b, a) <= TOLERANCE


def test_rows_do_not_know_each_other():
    dense, values, lengths = request()
    together = run(ours("dcn", "mean"), (dense, values, lengths))["logits"]
    bags = values.split(lengths.flatten().tolist())
    tables, rows = lengths.shape
    for row in range(rows):
        own = torch.cat([bags[table * rows + row] for table in range(tables)])
        alone = run(ours("dcn", "mean"), (dense[row : row + 1], own, lengths[:, row : row + 1]))["logits"]
        assert error(alone, together[row : row + 1]) <= TOLERANCE


def test_permuted_tables_permute_the_products():
    dense, values, lengths = request()
    model, order = ours("dot", "sum"), [3, 1, 0, 2]
    found = run(model, (dense, values, lengths))
    swapped = model.interaction(found["dense"], found["sparse"][:, order])
    n, dim = 5, 16
    place = {pair: dim + k for k, pair in enumerate((i, j) for i in range(n) for j in range(i + 1, n))}
    vectors = [0, *(1 + table for table in order)]
    for (i, j), at in place.items():
        pair = tuple(sorted((vectors[i], vectors[j])))
        assert error(swapped[:, at], found["interaction"][:, place[pair]]) <= TOLERANCE
