"""LLaDA's launches and their graphs on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastkernels import Model

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def requests(lengths: tuple[int, ...], draw: int, **options: Any) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(draw)
    fixed = {"gen_length": 32, "block_length": 16, "steps": 16, **options}
    return [{"input_ids": torch.randint(0, 149, (n,), generator=generator), **fixed} for n in lengths]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options", [{"dual_cache": True}, {"temperature": 1.0, "seed": 3}, {"threshold": 0.1}]
)
def test_replayed_launches_equal_eager_ones(dtype: str, options: dict[str, Any]):
    """Prompts of other lengths that are padded to the same sizes replay the graph of the first ones."""
    graphed = Model("llada", config="tiny", device="cuda", dtype=dtype)
    eager = Model("llada", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    for seed, lengths in enumerate(((40, 9, 30), (41, 8, 30), (36, 14, 29))):
        asked = requests(lengths, seed, **options)
        for found, wanted in zip(graphed.run(asked), eager.run(asked), strict=True):
            assert torch.equal(found["token_ids"], wanted["token_ids"])
            assert not (found["token_ids"] == 150).any()
    stats = graphed.stats()["fill"]
    assert stats["eager_calls"].keys() == {"first call of its shapes"}, stats
    assert stats["graph_replays"] >= 4


def test_cuda_agrees_with_the_cpu():
    """Forced ids keep one near-tie from making other texts; bfloat16 may turn some."""
    generator = torch.Generator().manual_seed(9)
    forced = torch.randint(0, 149, (32,), generator=generator)
    asked = requests((64, 33, 2, 17), 7, forced=forced, dual_cache=True, temperature=1.0)
    here, there, half = (
        torch.stack(
            [one["token_ids"] for one in Model("llada", config="tiny", device=device, dtype=dtype).run(asked)]
        )
        for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16"))
    )
    assert (there == here).float().mean() > 0.98
    assert (half == here).float().mean() > 0.85
    assert (here[0] == here[1]).float().mean() < 0.5, "unrelated texts differ"
