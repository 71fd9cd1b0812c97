"""BGE-M3's packed passes and their graphs on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fastkernels import Model

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu


def requests(lengths: tuple[int, ...], seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(4, 200, (length,), generator=generator)} for length in lengths]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_replayed_passes_equal_eager_ones(dtype: str):
    """Texts of other lengths that are padded to the same sizes replay the graph of the first ones."""
    graphed = Model("bge_m3", config="tiny", device="cuda", dtype=dtype)
    eager = Model("bge_m3", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    mixes = ((40, 9, 50), (41, 8, 49), (9, 40, 50), (36, 17, 49))
    for seed, lengths in enumerate(mixes):
        asked = requests(lengths, seed)
        for found, wanted in zip(graphed.run(asked), eager.run(asked), strict=True):
            assert found["colbert"].dtype == torch.float32
            for name in wanted:
                torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-4)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 3)


def test_cuda_agrees_with_the_cpu():
    asked = requests((64, 33, 2, 17), 7)
    here, there, half = (
        Model("bge_m3", config="tiny", device=device, dtype=dtype)
        for device, dtype in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "float16"))
    )
    for wanted, found, rounded in zip(here.run(asked), there.run(asked), half.run(asked), strict=True):
        for name in wanted:
            torch.testing.assert_close(found[name].cpu(), wanted[name], rtol=0, atol=1e-4)
        assert F.cosine_similarity(rounded["colbert"].cpu(), wanted["colbert"], dim=-1).min() > 0.999
