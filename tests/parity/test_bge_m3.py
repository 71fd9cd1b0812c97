"""Our BGE-M3 against transformers' XLM-RoBERTa in float32, a tiny model with randomised weights, the rows of
padding among them. The heads are FlagEmbedding's equations.

transformers pads every text of a batch to the longest; ours packs them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fastkernels.baseline.L4.bge_m3 import BgeM3EmbeddingModel
from torch import Tensor
from transformers import XLMRobertaConfig, XLMRobertaModel

from fastkernels import Model, kernels, registry
from fastkernels.errors import UsageError, WeightsError
from fastkernels.nn.random_weights import random_weights
from fastkernels.nn.weights import destinations, export_weights, load_weights

TOLERANCE = 1e-5  # from the architecture's fact sheet
ENTRY = registry.architecture("bge_m3")
TINY, REAL = (dict(ENTRY.configs[name].config) for name in ("tiny", "m3"))
LENGTHS = (12, 7, 5)
HEADS = ("sparse_linear", "colbert_linear")
Outputs = tuple[Tensor, Tensor, Tensor]


def config(fields: dict[str, Any]) -> XLMRobertaConfig:
    return XLMRobertaConfig(**{k: v for k, v in fields.items() if k not in ("model_type", "architectures")})


@lru_cache
def ours() -> BgeM3EmbeddingModel:
    model = BgeM3EmbeddingModel(TINY)
    random_weights(model, seed=0)
    return model.eval()


@lru_cache
def reference() -> XLMRobertaModel:
    model = XLMRobertaModel(config(TINY), add_pooling_layer=False).eval()
    weights = {name: tensor for name, tensor in export_weights(ours()) if not name.startswith(HEADS)}
    model.load_state_dict(weights, strict=True)
    return model


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    """Between the marks of beginning and end, without the id of padding."""
    generator = torch.Generator().manual_seed(1)
    inner = [torch.randint(4, 200, (length - 2,), generator=generator) for length in lengths]
    return [torch.cat([torch.tensor([0]), ids, torch.tensor([2])]) for ids in inner]


@torch.inference_mode()
def run(model: BgeM3EmbeddingModel, given: list[Tensor], first: int = 2) -> Outputs:
    """One packed pass."""
    lengths = [len(ids) for ids in given]
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    positions = torch.cat([torch.arange(first, first + length) for length in lengths])
    return model(torch.cat(given), positions, starts, max(lengths))


@torch.inference_mode()
def hidden(given: list[Tensor], right: bool = True) -> Tensor:
    """transformers' states of one padded batch, packed."""
    longest = max(len(ids) for ids in given)
    pads = [longest - len(ids) for ids in given]
    padded = torch.stack(
        [F.pad(ids, (0, pad) if right else (pad, 0), value=1) for ids, pad in zip(given, pads)]
    )
    return reference()(padded, (padded != 1).int()).last_hidden_state[padded != 1]


@torch.inference_mode()
def heads(hidden_TD: Tensor, given: list[Tensor]) -> Outputs:
    sparse, colbert = ours().sparse_linear, ours().colbert_linear
    starts = [0, *accumulate(len(ids) for ids in given)][:-1]
    return (
        F.normalize(F.linear(hidden_TD, colbert.weight, colbert.bias), dim=-1),
        F.normalize(hidden_TD[starts], dim=-1),
        F.linear(hidden_TD, sparse.weight, sparse.bias).relu()[:, 0],
    )


def close(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE)


def error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("implementation", ["reference", "torch"])
def test_a_packed_pass_equals_the_padded_batch(implementation: str):
    wanted = heads(hidden(texts()), texts())
    assert (wanted[2] > 0).float().mean() > 0.2, "a strong test needs weights that are not cut to 0"
    with kernels.use(implementation):
        close(run(ours(), texts()), wanted)


def test_a_text_does_not_depend_on_its_company_or_on_the_side_of_padding():
    colbert, dense, sparse = run(ours(), texts())
    close((colbert, dense, sparse), heads(hidden(texts(), right=False), texts()))
    begin = 0
    for b, ids in enumerate(texts()):
        end = begin + len(ids)
        close(run(ours(), [ids]), (colbert[begin:end], dense[b : b + 1], sparse[begin:end]))
        begin = end
    close((run(ours(), texts()[::-1])[1].flip(0),), (dense,))
    torch.testing.assert_close(colbert.norm(dim=-1), torch.ones(len(colbert)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_act": "gelu_new"},
        {"layer_norm_eps": 1e-2},
        {"num_attention_heads": 2},
        {"num_hidden_layers": 1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_model_would_be_noticed(wrong: dict[str, Any]):
    other = BgeM3EmbeddingModel(TINY | wrong)
    kept = (
        (n, t) for n, t in export_weights(ours()) if wrong.get("num_hidden_layers") is None or ".1." not in n
    )
    load_weights(other, kept)
    assert error(run(other, texts()), heads(hidden(texts()), texts())) > 10 * TOLERANCE


def test_wrong_positions_heads_and_halves_would_be_noticed():
    wanted = heads(hidden(texts()), texts())
    for first in (0, 1, 3):
        assert error(run(ours(), texts(), first), wanted) > 10 * TOLERANCE
    early = heads(F.normalize(hidden(texts()), dim=-1), texts())
    assert error(early, wanted) > 10 * TOLERANCE, "normalised before the projection"
    colbert = ours().colbert_linear
    parts = (part.half() for part in (hidden(texts()), colbert.weight, colbert.bias))
    assert error((F.normalize(F.linear(*parts).float(), dim=-1),), wanted[:1]) > 10 * TOLERANCE, "in float16"


def test_a_norm_before_the_sum_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    wanted = heads(hidden(texts()), texts())

    def before(x: Tensor, residual: Tensor, *norm: Any) -> Tensor:
        return kernels.layer_norm(x, *norm) + residual

    monkeypatch.setattr(kernels, "sum_layer_norm", before)
    assert error(run(ours(), texts()), wanted) > 10 * TOLERANCE


def test_the_face_answers_each_text_with_rows_of_its_own():
    """Without the first token's colbert row, and with the last one's; in float32 also beside float16."""
    model = Model("bge_m3", config="tiny", device="cpu")
    answers = model.run([{"input_ids": ids} for ids in texts()])
    packed = run(model.model, texts())
    parts = zip(answers, packed[0].split(LENGTHS), packed[1], packed[2].split(LENGTHS), strict=True)
    for answer, colbert, dense, sparse in parts:
        close((answer["colbert"], answer["dense"], answer["sparse"]), (colbert[1:], dense, sparse))
    assert model.stages["forward"].batch_sizes == [3]
    half = Model("bge_m3", config="tiny", device="cpu", dtype="float16")
    (answer,) = half.run([{"input_ids": texts()[0]}])
    assert {value.dtype for value in answer.values()} == {torch.float32}
    assert half.model.embeddings.word_embeddings.weight.dtype == torch.float16
    assert F.cosine_similarity(answer["colbert"], answers[0]["colbert"]).min() > 0.999


def folder(path: Path, prefix: str = "", left_out: str = "") -> Path:
    """A checkpoint as the hub has it: the encoder's file and one for each head."""
    weights = {name: tensor.clone() for name, tensor in export_weights(ours())}
    (path / "config.json").write_text(json.dumps(TINY))
    further = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids")
    encoder = {name: tensor for name, tensor in weights.items() if not name.startswith(HEADS)}
    encoder |= dict.fromkeys(further, torch.zeros(1))
    torch.save({prefix + name: tensor for name, tensor in encoder.items()}, path / "pytorch_model.bin")
    for head in HEADS:
        if head != left_out:
            parts = {part: weights[f"{head}.{part}"] for part in ("weight", "bias")}
            torch.save(parts, path / f"{head}.pt")
    return path


@pytest.mark.parametrize("prefix", ["", "roberta."])
def test_a_checkpoint_of_three_files(tmp_path: Path, prefix: str):
    model = Model(folder(tmp_path, prefix), device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(model.model.parameters(), ours().parameters(), strict=True))


def test_a_checkpoint_without_a_head(tmp_path: Path):
    with pytest.raises(WeightsError, match=r"missing +colbert_linear\.weight"):
        Model(folder(tmp_path, left_out="colbert_linear"), device="cpu")


def test_names_and_counts_of_the_real_checkpoint():
    """Every name of the encoder's and the heads' files is read, or the pooler's; the sheet's counts."""
    with torch.device("meta"):
        model, theirs = BgeM3EmbeddingModel(REAL), XLMRobertaModel(config(REAL))
    names = {*theirs.state_dict(), *(f"{head}.{part}" for head in HEADS for part in ("weight", "bias"))}
    places, unnamed = destinations(model)
    assert not unnamed
    assert names - places.keys() == {"pooler.dense.weight", "pooler.dense.bias"}
    assert not places.keys() - names
    assert all(model.weight_map.ignores(name) for name in names - places.keys())
    counts = {name: p.numel() for name, p in model.named_parameters()}
    of_heads = sum(count for name, count in counts.items() if name.startswith(HEADS))
    assert (sum(counts.values()) - of_heads, of_heads) == (566_705_152, 1_050_625)
    tiny = sum(p.numel() for n, p in ours().named_parameters() if not n.startswith(HEADS))
    assert tiny == 88_320 - 4_160, "the sheet's, less the pooler"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 5}, "hidden_size: 64 is no multiple"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key'"),
        ({"is_decoder": True}, "is_decoder"),
        ({"max_position_embeddings": 2}, "leaves no position"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        BgeM3EmbeddingModel(TINY | change)
