"""Our LightGCN against torch-geometric's and against a dense matrix in float64, float32 on the CPU: a tiny
graph with edges that are there twice and nodes without any. torch-geometric runs in a process of its own."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fastkernels.baseline.L4.lightgcn import LightGCN
from safetensors.torch import save_file
from torch import Tensor

from fastkernels import Model, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import find, load_model
from fastkernels.nn.bipartite import random_edges
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations
from tests.parity import apart

TOLERANCE = 1e-6  # from the architecture's fact sheet
TINY = registry.architecture("lightgcn").configs["tiny"].config
USERS, ITEMS = TINY["num_users"], TINY["num_items"]
PAIRS = torch.cartesian_prod(torch.arange(USERS), torch.arange(USERS, USERS + ITEMS)).T.contiguous()


@lru_cache
def ours(layers: int = 3) -> LightGCN:
    model = LightGCN({**TINY, "num_layers": layers})
    random_weights(model, seed=0)
    return model


def edges() -> Tensor:
    """[2, 2 E] nodes of both directions."""
    drawn = TINY["graph"]
    counts = (drawn["num_edges"], drawn["num_duplicates"], drawn["num_isolated"], drawn["seed"])
    users, items = torch.from_numpy(random_edges(USERS, ITEMS, *counts))
    return torch.stack((torch.cat((users, items + USERS)), torch.cat((items + USERS, users))))


def dense() -> Tensor:
    """The normalised adjacency in float64, from its definition."""
    a_NN = torch.zeros(USERS + ITEMS, USERS + ITEMS, dtype=torch.float64)
    for row, column in edges().T.tolist():
        a_NN[row, column] += 1
    degree_N = a_NN.sum(1).clamp(min=1)
    return a_NN / (degree_N[:, None] * degree_N).sqrt()


def propagated(matrix: Tensor, layers: int = 3, divisor: float = 4.0, first: bool = True) -> Tensor:
    x = ours(layers).embedding.double()
    total = x if first else torch.zeros_like(x)
    for _ in range(layers):
        x = matrix @ x
        total = total + x
    return total / divisor


def matrix_of(model: LightGCN) -> Tensor:
    rows = torch.arange(USERS + ITEMS).repeat_interleave(model.crow_indices.diff())
    found = torch.zeros(USERS + ITEMS, USERS + ITEMS, dtype=torch.float64)
    return found.index_put((rows, model.col_indices.long()), model.values.double(), accumulate=True)


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max())


@torch.inference_mode()
def answers(layers: int = 3) -> dict[str, Tensor]:
    return {"x": ours(layers).get_embedding(), "scores": ours(layers)(PAIRS)}


@pytest.mark.parametrize("is_normalised", [True, False])
@apart.needs("torch_geometric")
def test_nodes_and_scores_agree_with_torch_geometric(is_normalised: bool, tmp_path: Path):
    model = ours()
    asked = {"num_layers": 3, "embedding": model.embedding.detach(), "edge_index": edges(), "pairs": PAIRS}
    csr = (model.crow_indices.long(), model.col_indices.long(), model.values)
    asked["csr"] = csr if is_normalised else None
    wanted = apart.answer("torch_geometric_process", asked, tmp_path)
    assert wanted["scores"].std() > 0.1, "weights too small for a strong test"
    for name, value in answers().items():
        assert error(value, wanted[name]) <= TOLERANCE, name


def test_they_agree_with_a_dense_matrix_in_float64():
    wanted = propagated(dense())
    found = answers()
    assert error(found["x"], wanted) <= TOLERANCE
    assert error(found["scores"], (wanted[PAIRS[0]] * wanted[PAIRS[1]]).sum(1)) <= TOLERANCE


def test_the_graph_has_what_goes_wrong_elsewhere():
    a_NN, edge_index = dense(), edges()
    assert len(edge_index[0]) == 80
    assert len(edge_index.T.unique(dim=0)) == 60, "ten edges are there twice"
    assert int((a_NN.sum(1) == 0).sum()) >= 2


def spoilt(wrong: str) -> Tensor:
    """X of a model that goes wrong where others have."""
    a_NN, n = dense(), USERS + ITEMS
    if wrong == "divided by L":
        return propagated(a_NN, divisor=3.0)
    if wrong == "without layer 0":
        return propagated(a_NN, first=False)
    if wrong == "normalised twice":
        degree_N = a_NN.sum(1).clamp(min=1e-9)
        return propagated(a_NN / (degree_N[:, None] * degree_N).sqrt())
    counts_NN = torch.zeros(n, n, dtype=torch.float64).index_put(
        tuple(edges()), torch.ones(80, dtype=torch.float64), accumulate=True
    )
    if wrong == "self loops":
        counts_NN += torch.eye(n, dtype=torch.float64)
    if wrong == "duplicates once":
        counts_NN = (counts_NN > 0).double()
    degree_N = counts_NN.sum(1).clamp(min=1)
    if wrong == "degrees of duplicates once":
        degree_N = (counts_NN > 0).double().sum(1).clamp(min=1)
    return propagated(counts_NN / (degree_N[:, None] * degree_N).sqrt())


@pytest.mark.parametrize(
    "wrong",
    [
        "divided by L",
        "without layer 0",
        "normalised twice",
        "self loops",
        "duplicates once",
        "degrees of duplicates once",
    ],
)
def test_a_wrong_model_would_be_noticed(wrong: str):
    assert error(answers()["x"], spoilt(wrong)) > 10 * TOLERANCE


def test_items_without_their_offset_would_be_noticed():
    with torch.inference_mode():
        found = ours()(torch.stack((PAIRS[0], PAIRS[1] - USERS)))
    assert error(found, answers()["scores"]) > 10 * TOLERANCE


# ---------------------------------------------------------------- invariants


def test_the_matrix_is_symmetric_and_its_rows_sum_to_the_inverse_roots_of_degrees():
    a_NN = matrix_of(ours())
    assert error(a_NN, a_NN.T) <= TOLERANCE
    assert error(a_NN, dense()) <= TOLERANCE
    degree_N = torch.bincount(edges()[0], minlength=USERS + ITEMS).clamp(min=1).double()
    sums_N = torch.zeros(USERS + ITEMS, dtype=torch.float64)
    for row, column in edges().T.tolist():
        sums_N[row] += (degree_N[row] * degree_N[column]) ** -0.5
    assert error(a_NN.sum(1), sums_N) <= TOLERANCE


def test_a_node_without_edges_keeps_its_share():
    lone = dense().sum(1) == 0
    assert error(answers()["x"][lone], ours().embedding[lone] / 4) <= TOLERANCE


def test_without_layers_it_is_matrix_factorisation():
    u, i = (ours(0).embedding[nodes] for nodes in PAIRS)
    assert error(answers(0)["scores"], (u * i).sum(1)) <= TOLERANCE


def test_relabelled_nodes_are_permuted_rows():
    generator = torch.Generator().manual_seed(1)
    new_user, new_item = (torch.randperm(n, generator=generator) for n in (USERS, ITEMS))
    users, items = edges()[:, :40]
    listed = torch.stack((new_user[users], new_item[items - USERS])).tolist()
    other = LightGCN({**{k: v for k, v in TINY.items() if k != "graph"}, "edge_index": listed})
    place = torch.cat((new_user, USERS + new_item))
    other.embedding[place] = ours().embedding
    with torch.inference_mode():
        assert error(other.get_embedding()[place], answers()["x"]) <= TOLERANCE


# ---------------------------------------------------------------- bad input, and checkpoints


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"edge_index": [[0, 12], [1, 1]]}, "edge_index: edge 1 has user 12: there are users 0 to 11"),
        ({"edge_index": [[0, 1], [1, -1]]}, "edge_index: edge 1 has item -1: there are items 0 to 8"),
        ({"edge_index": [[0, 1], [1]]}, "edge_index: "),
        ({"edge_index": [[0.5], [1]]}, "edge_index: must be two lists of integers"),
        (
            {"graph": {"num_edges": 200, "num_duplicates": 0, "num_isolated": 0, "seed": 0}},
            "graph: 200 edges",
        ),
        ({"graph": None}, r"graph\.num_edges: is missing"),
        ({"num_nodes": 20}, "num_nodes: must be num_users [+] num_items, 21"),
    ],
)
def test_a_graph_that_cannot_be_is_refused_when_the_model_is_built(changes: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        LightGCN({**TINY, **changes})


def test_ids_outside_the_tables_are_refused_and_others_unharmed():
    model = Model("lightgcn", config="tiny")
    good = {"users": torch.tensor([11, 0]), "items": torch.tensor([8, 3])}
    bad = [
        {"users": torch.tensor([0, 12]), "items": torch.tensor([8, 3])},
        {"users": torch.tensor([0, 1]), "items": torch.tensor([-1, 3])},
        {"users": torch.tensor([0, 1]), "items": torch.tensor([3])},
        {"users": torch.tensor([], dtype=torch.int64), "items": torch.tensor([], dtype=torch.int64)},
        {"users": torch.tensor([0.0]), "items": torch.tensor([0])},
    ]
    (alone,) = model.run([good])
    *errors, found = model.run([*bad, good], errors="return")
    assert torch.equal(found["scores"], alone["scores"])
    assert all(isinstance(one, RequestError) for one in errors)
    assert [str(one) for one in errors] == [
        "users[1] is 12: there are users 0 to 11",
        "items[0] is -1: there are items 0 to 8",
        "2 users and 1 items are no pairs",
        "a request of 0 pairs: they are 1 to 1048576. Split it",
        "users must be int64 or int32 [pairs], not float32 [1]",
    ]


def test_requests_share_a_launch():
    model = Model("lightgcn", config="tiny")
    asked = [{"users": torch.tensor([i, 3]), "items": torch.tensor([2, i])} for i in range(4)]
    asked.append({"users": torch.tensor([5]), "items": torch.tensor([5])})
    found = model.run(asked)
    assert model.stages["score"].batch_sizes == [4, 1]
    for one, request in zip(found, asked):
        nodes = torch.stack((request["users"], request["items"] + USERS))
        with torch.inference_mode():
            assert error(one["scores"], model.model(nodes)) <= TOLERANCE


def written(folder: Path, tensors: dict[str, Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(TINY))
    save_file(tensors, folder / "model.safetensors")
    return folder


def loaded(folder: Path) -> LightGCN:
    source = find(str(folder))
    return load_model(source, Overlay.over_baseline(), torch.device("cpu"), torch.float32, seed=0)  # type: ignore[return-value]


def test_a_checkpoint_has_one_table_as_the_reference_or_two(tmp_path: Path):
    table = ours().embedding.detach()
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    written(one, {"embedding.weight": table.clone(), "alpha": torch.full((4,), 0.25)})
    users, items = table.split([USERS, ITEMS])
    written(two, {"user_embedding.weight": users.clone(), "item_embedding.weight": items.clone()})
    for folder in (one, two):
        assert torch.equal(loaded(folder).embedding, table)
    written(two, {"user_embedding.weight": users[:3].clone(), "others": items.clone()})
    with pytest.raises(WeightsError) as raised:
        loaded(two)
    assert {" ".join(line.split()) for line in str(raised.value).splitlines()[1:]} == {
        "missing item_embedding.weight, expected [9, 8]",
        "unexpected others [9, 8]",
        "misshapen user_embedding.weight [3, 8], expected [12, 8]",
    }


def test_the_real_checkpoints_names_are_covered():
    with torch.device("meta"):
        places, unnamed = destinations(LightGCN(find("lightgcn", "ml-1m").config))
    assert not unnamed
    assert {name: place.shape for name, place in places.items()} == {
        "user_embedding.weight": [6040, 64],
        "item_embedding.weight": [3952, 64],
    }
