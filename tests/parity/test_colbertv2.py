"""Our ColBERTv2 against transformers' BERT in float32, a tiny model with randomised weights; projection, mask
and scores are colbert-ai's equations.

transformers pads every passage of a batch to the longest; ours packs them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fastkernels.baseline.L2.late_interaction import LateInteraction, PackedLateInteraction
from fastkernels.baseline.L4.colbertv2 import ColBERT
from torch import Tensor
from transformers import BertConfig, BertModel

from fastkernels import Model, kernels, registry
from fastkernels.errors import RequestError, UsageError, WeightsError
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights

TOLERANCE = 1e-5  # from the architecture's fact sheet
ENTRY = registry.architecture("colbertv2")
TINY, REAL = (dict(ENTRY.configs[name].config) for name in ("tiny", "v2"))
CLS, SEP, MASK, DOC, QUERY = 5, 6, 7, 2, 1
PUNCTUATION = (20, 21, 22)
SMALL = 0.02  # of an embedding: an epsilon of a norm shows beside small rows alone


def config(fields: dict[str, Any]) -> BertConfig:
    left_out = ("model_type", "architectures", "dim")
    return BertConfig(**{k: v for k, v in fields.items() if k not in left_out})


@lru_cache
def ours() -> ColBERT:
    model = ColBERT(TINY)
    random_weights(model, seed=0)
    for name, parameter in model.embeddings.named_parameters():
        if name.endswith("embeddings.weight"):
            parameter.mul_(SMALL)
    return model.eval()


@lru_cache
def reference() -> BertModel:
    model = BertModel(config(TINY), add_pooling_layer=False).eval()
    weights = dict(export_weights(ours()))
    projection = weights.pop("linear.weight")
    assert projection.shape == (16, 48)
    model.load_state_dict({n.removeprefix("bert."): t for n, t in weights.items()}, strict=True)
    return model


def docs() -> list[Tensor]:
    """Three documents of up to 14 tokens with punctuation in them."""
    generator = torch.Generator().manual_seed(3)
    inner = [torch.randint(8, 120, (length,), generator=generator) for length in (11, 6, 3)]
    inner[0][4], inner[0][9], inner[1][2] = 20, 22, 21
    return [torch.cat([torch.tensor([CLS, DOC]), ids, torch.tensor([SEP])]) for ids in inner]


def query() -> tuple[Tensor, Tensor]:
    """Five tokens, three that fill it up to 8, and which of them are seen."""
    ids = torch.tensor([CLS, QUERY, 40, 77, SEP, MASK, MASK, MASK])
    return ids, (ids != MASK).long()


def kept(ids: Tensor) -> Tensor:
    return ~torch.isin(ids, torch.tensor(PUNCTUATION))


@torch.inference_mode()
def run(model: ColBERT, given: list[Tensor], keep: bool = False, first: int = 0) -> Tensor:
    """One packed pass of documents."""
    lengths = [len(ids) for ids in given]
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    positions = torch.cat([torch.arange(first, first + length) for length in lengths])
    keep_T = kept(torch.cat(given)) if keep else None
    return model(torch.cat(given), positions, starts, max(lengths), keep_T)


@torch.inference_mode()
def hidden(given: list[Tensor], masks: list[Tensor] | None = None) -> list[Tensor]:
    """transformers' states of one padded batch, of each text its own rows."""
    longest = max(len(ids) for ids in given)
    masks = masks or [torch.ones_like(ids) for ids in given]
    padded, mask = (
        torch.stack([F.pad(row, (0, longest - len(row))) for row in rows]) for rows in (given, masks)
    )
    states_BSD = reference()(padded, mask).last_hidden_state
    return [row[: len(ids)] for row, ids in zip(states_BSD, given)]


@torch.inference_mode()
def expected(given: list[Tensor], masks: list[Tensor] | None = None, keep: bool = False) -> list[Tensor]:
    rows = [F.linear(row, ours().linear.weight) for row in hidden(given, masks)]
    if keep:
        rows = [row * kept(ids)[:, None] for row, ids in zip(rows, given)]
    return [F.normalize(row, dim=-1) for row in rows]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max())


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_packed_documents_equal_the_padded_batch(implementation: str):
    wanted = torch.cat(expected(docs(), keep=True))
    with kernels.use(implementation):
        found = run(ours(), docs(), keep=True)
        alone = torch.cat([run(ours(), [ids], keep=True) for ids in docs()])
    close(found, wanted)
    close(alone, wanted)
    masked = ~kept(torch.cat(docs()))
    assert masked.sum() == 3
    assert torch.equal((found == 0).all(-1), masked)


def requests() -> list[dict[str, Any]]:
    ids, mask = query()
    more = {"input_ids": ids, "attention_mask": mask}
    less = {"input_ids": ids.roll(1), "attention_mask": mask.roll(1)}  # a token that is not seen at first
    return [more, *({"input_ids": ids, "keep": kept(ids)} for ids in docs()), less]


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_queries_are_filled_and_share_launches(implementation: str, pads: bool):
    """What fills a query is not seen, and has rows all the same. Queries and documents: two launches."""
    model = Model({**TINY}, device="cpu")
    load_weights(model.model, export_weights(ours()))
    batching = model.stages["forward"].batching
    batching.pads = pads  # type: ignore[attr-defined]
    with kernels.use(implementation):
        found = [answer["embeddings"] for answer in model.run(requests())]
    assert model.stages["forward"].batch_sizes == [2, 3]
    asked = [requests()[place] for place in (0, -1)]
    wanted = expected([one["input_ids"] for one in asked], [one["attention_mask"] for one in asked])
    for rows, theirs in zip(
        (found[0], *found[1:4], found[4]), (wanted[0], *expected(docs(), keep=True), wanted[1])
    ):
        close(rows, theirs)
    seen = run(ours(), [query()[0]])
    assert error(seen, wanted[0]) > 10 * TOLERANCE, "fillers are seen"


@torch.inference_mode()
def test_scores_and_their_invariants():
    """colbert_score of padded documents, and of packed ones; further padding changes no score."""
    asked, mask = query()
    q_LK = expected([asked], [mask])[0]
    rows = expected(docs(), keep=True)
    longest = max(map(len, rows))
    padded = torch.stack([F.pad(row, (0, 0, 0, longest - len(row))) for row in rows])
    keeps = torch.stack([F.pad(kept(ids), (0, longest - len(ids))) for ids in docs()])
    similar = (padded @ q_LK.T).masked_fill(~keeps[..., None], -9999)
    wanted = similar.amax(1).sum(-1)
    close(LateInteraction()(q_LK[None], padded, keeps), wanted)
    more = LateInteraction()(q_LK[None], F.pad(padded, (0, 0, 0, 5)), F.pad(keeps, (0, 5)))
    close(more, wanted)
    # Packed documents have no rows that do not count.
    some = [row[kept(ids)] for row, ids in zip(rows, docs())]
    lengths = torch.tensor([len(row) for row in some], dtype=torch.int32)
    close(PackedLateInteraction()(q_LK, torch.cat(some), lengths), wanted)
    away = LateInteraction()(-q_LK[None].abs(), padded.abs(), keeps)
    assert (away < 0).all(), "rows of padding and punctuation, which are zeros, would be the best"


@pytest.mark.parametrize(
    "wrong",
    [
        {"layer_norm_eps": 1e-5},
        {"hidden_act": "gelu_new"},
        {"num_attention_heads": 2},
        {"num_hidden_layers": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_model_would_be_noticed(wrong: dict[str, Any]):
    other = ColBERT(TINY | wrong)
    names = destinations(other)[0]
    load_weights(other, ((name, tensor) for name, tensor in export_weights(ours()) if name in names))
    assert error(run(other, docs()), torch.cat(expected(docs()))) > 10 * TOLERANCE


def test_wrong_positions_masks_and_halves_would_be_noticed():
    wanted = torch.cat(expected(docs(), keep=True))
    for first in (1, 2):
        assert error(run(ours(), docs(), True, first), wanted) > 10 * TOLERANCE
    assert error(run(ours(), docs()), wanted) > 10 * TOLERANCE, "punctuation has rows"
    states, weight = torch.cat(hidden(docs())), ours().linear.weight
    biased = F.normalize(F.linear(states, weight, torch.full((16,), 0.01)), dim=-1)
    halves = F.normalize(F.linear(states.half(), weight.half()).float(), dim=-1)
    for found in (biased, halves):
        assert error(found, torch.cat(expected(docs()))) > 10 * TOLERANCE


def test_a_checkpoint_and_one_without_its_projection(tmp_path: Path):
    weights = {name: tensor.clone() for name, tensor in export_weights(ours())}
    further = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "bert.embeddings.position_ids")
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    torch.save(weights | dict.fromkeys(further, torch.zeros(1)), tmp_path / "pytorch_model.bin")
    model = Model(tmp_path, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(model.model.parameters(), ours().parameters(), strict=True))
    del weights["linear.weight"]
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"missing +linear\.weight"):
        Model(tmp_path, device="cpu")


def test_names_and_counts_of_the_real_checkpoint():
    with torch.device("meta"):
        model, theirs = ColBERT(REAL), BertModel(config(REAL))
    names = {*(f"bert.{name}" for name in theirs.state_dict()), "linear.weight"}
    places, unnamed = destinations(model)
    assert not unnamed
    assert names - places.keys() == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert not places.keys() - names
    assert all(model.weight_map.ignores(name) for name in names - places.keys())
    of_projection = model.linear.weight.numel()
    assert of_projection == 98_304
    assert sum(p.numel() for p in model.parameters()) - of_projection == 108_891_648
    with torch.device("meta"):
        tiny = ColBERT(TINY)
    assert sum(p.numel() for p in tiny.parameters()) == 50_064 - 2_352, "the sheet's, less the pooler"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attention_mask": torch.ones(7).long()}, r"attention_mask must be integers or bool \[8\]"),
        ({"attention_mask": torch.zeros(8).long()}, "attention_mask is 0 everywhere"),
        ({"keep": torch.ones(8)}, r"keep must be .* not float32 \[8\]"),
        ({"keep": [1] * 8}, "keep must be .* not list"),
        ({"input_ids": torch.full((8,), 120)}, "token id 120"),
        ({"input_ids": torch.ones(65).long()}, "65 token ids: the model takes up to 64"),
    ],
)
def test_requests_that_are_refused_harm_no_other(change: dict[str, Any], says: str):
    model = Model("colbertv2", config="tiny", device="cpu")
    good = {"input_ids": query()[0], "attention_mask": query()[1], "keep": torch.ones(8).bool()}
    found, refused = model.run([good, good | change], errors="return")
    assert isinstance(refused, RequestError)
    with pytest.raises(RequestError, match=says):
        raise refused
    assert found["embeddings"].shape == (8, 16)


def test_a_projection_without_columns_is_refused():
    with pytest.raises(UsageError, match="dim: must be an integer of at least 1"):
        ColBERT(TINY | {"dim": 0})
