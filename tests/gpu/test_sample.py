"""Sampling on CUDA at a model's vocabulary: the Triton kernels draw what the reference draws."""

import pytest
import torch

from fastkernels import kernels

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
VOCABULARY = 128_256


@pytest.mark.parametrize("limits", ["none", "top_k", "top_p", "both"])
@pytest.mark.parametrize("rows", [1, 3, 40, 300])
def test_triton_draws_the_reference_s_ids(rows: int, limits: str) -> None:
    generator = torch.Generator("cuda").manual_seed(rows)
    logits = torch.randn(rows, VOCABULARY, generator=generator, device="cuda") * 3
    top_k = torch.randint(0, 1000, (rows,), dtype=torch.int32, generator=generator, device="cuda")
    top_p = torch.rand(rows, generator=generator, device="cuda") * 0.9 + 0.1
    arguments = (
        logits,
        torch.rand(rows, generator=generator, device="cuda") * 1.5,
        top_k if limits in ("top_k", "both") else None,
        top_p if limits in ("top_p", "both") else None,
        torch.arange(rows, device="cuda"),
        torch.arange(rows, device="cuda") * 7,
    )
    ids, expected = (kernels.sample(*arguments, impl=impl) for impl in ("triton", "reference"))
    # Where top_p cuts, float32 sums may allow one id more or less, which next to nobody draws.
    assert (ids != expected).sum() <= (1 if limits in ("top_p", "both") else 0)


def test_equal_logits_are_cut_by_their_ids() -> None:
    logits = torch.zeros(2, VOCABULARY, device="cuda")
    top_k = torch.tensor([5, 0], dtype=torch.int32, device="cuda")
    ones = torch.ones(2, device="cuda")
    seen = set()
    for position in range(60):
        positions = torch.full((2,), position, device="cuda")
        ids = kernels.sample(logits, ones, top_k, None, torch.zeros_like(positions), positions, impl="triton")
        seen.add(int(ids[0]))
    assert seen == {0, 1, 2, 3, 4}
