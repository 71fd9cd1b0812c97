"""ColBERTv2's packed passes on a GPU: documents, and queries whose fillers are not seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fastkernels import Model

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def documents(lengths: tuple[int, ...], seed: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(4, 120, (length,), generator=generator) for length in lengths]
    return [{"input_ids": ids, "keep": ids % 7 > 0} for ids in texts]


def queries(lengths: tuple[int, ...], seed: int) -> list[dict[str, Any]]:
    """All of 32 tokens, of which so many are seen."""
    texts = documents((32,) * len(lengths), seed)
    return [
        {"input_ids": text["input_ids"], "attention_mask": torch.arange(32) < length}
        for text, length in zip(texts, lengths)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("make", "mixes"),
    [
        (documents, ((40, 9, 50), (41, 8, 49), (9, 40, 50), (36, 17, 49))),
        (queries, ((5, 20, 9), (9, 5, 20), (20, 7, 7), (11, 11, 12))),
    ],
    ids=["documents", "queries"],
)
def test_replayed_passes_equal_eager_ones(make: Any, mixes: Any, dtype: str):
    graphed = Model("colbertv2", config="tiny", device="cuda", dtype=dtype)
    eager = Model("colbertv2", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    for seed, lengths in enumerate(mixes):
        asked = make(lengths, seed)
        for found, wanted in zip(graphed.run(asked), eager.run(asked), strict=True):
            assert found["embeddings"].dtype == torch.float32
            torch.testing.assert_close(found["embeddings"], wanted["embeddings"], rtol=0, atol=1e-4)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 3)


def test_cuda_agrees_with_the_cpu():
    asked = [*documents((64, 33, 2, 17), 7), *queries((3, 32, 14), 8)]
    here, there, half = (
        Model("colbertv2", config="tiny", device=device, dtype=dtype)
        for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "float16"))
    )
    for given, wanted, found, rounded in zip(
        asked, here.run(asked), there.run(asked), half.run(asked), strict=True
    ):
        torch.testing.assert_close(found["embeddings"].cpu(), wanted["embeddings"], rtol=0, atol=1e-4)
        kept = given.get("keep", torch.ones(len(given["input_ids"])).bool())
        both = (rounded["embeddings"].cpu()[kept], wanted["embeddings"][kept])
        assert F.cosine_similarity(*both, dim=-1).min() > 0.999
