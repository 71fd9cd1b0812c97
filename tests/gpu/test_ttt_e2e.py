"""TTT-E2E on a GPU: the kernels of a gradient step at the sizes of the real model, and sequences as
graphs."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.kernels import registered
from tests.gradient_cases import (
    entropy,
    entropy_arguments,
    glu_grad_cases,
    norm_grad_cases,
    sliding_cases,
    sliding_grad_cases,
)
from tests.pointwise_cases import check, run, to_device, worst_row_error

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# A chunk behind others, the first one, one whose window is left, and heads and tiles of no power of two.
SHAPES = [(1024, 2048, 12, 64, 8192), (256, 256, 12, 64, 512), (200, 777, 3, 80, 333), (70, 101, 2, 16, 33)]
ROW_WISE = [
    *norm_grad_cases([(1024, 768), (1024, 12, 64), (7, 24), (3, 2560)]),
    *glu_grad_cases([(1024, 1664), (7, 40)]),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*sliding_cases(SHAPES), *sliding_grad_cases(SHAPES)], ids=str)
def test_attention_over_a_window_and_its_gradient(case, dtype):
    """Against autograd; rows that are smaller than the mean row are held against that."""
    args = case.make(dtype)
    exact, wide = case.answer(*args), to_device(args, "cuda")
    reference, found = (run(case.kernel, wide, impl) for impl in ("reference", "triton"))
    for ours, plain, wanted in zip(found, reference, exact):
        size = wanted.norm(dim=-1)
        errors = [
            ((each.cpu().double() - wanted).norm(dim=-1) / size.clamp(min=size.mean())).max().item()
            for each in (ours, plain)
        ]
        # As in tests/unit/kernels/test_gradients.py; a sum of 2,048 is larger.
        floor = 20 if dtype == torch.float32 else 2
        assert errors[0] <= max(2 * errors[1], floor * torch.finfo(dtype).eps), f"{case}: {errors}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ROW_WISE, ids=str)
def test_gradients_of_rows(case, dtype):
    for impl in registered[case.kernel].names[1:]:
        check(case, dtype, impl, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [(64, 128256, 3.0), (7, 997, 3.0), (5, 33, 12.0)], ids=str)
def test_cross_entropy(rows, dtype):
    logits, targets = entropy_arguments(*rows)(dtype)
    wanted_nll, wanted_slope = entropy(logits, targets)
    for impl in registered["cross_entropy"].names:
        nll, slope = kernels.cross_entropy(logits.cuda(), targets.cuda(), impl=impl)
        torch.testing.assert_close(nll.cpu().double(), wanted_nll, rtol=5e-6, atol=5e-6)
        assert worst_row_error(slope, wanted_slope) < (5e-6 if dtype == torch.float32 else 4e-3), impl


def asked(tokens: int, seed: int, learn: int = 1) -> list[dict]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(256, (tokens,), generator=generator), "learn": learn}]


def model(device: str = "cuda", dtype: str = "float32", **options) -> Model:
    return Model("ttt_e2e", config="tiny", device=device, dtype=dtype, **options)


def test_replayed_sequences_equal_eager_ones_and_the_cpu():
    """One length three times: eager, captured, replayed; then without learning, and the first again."""
    graphed, eager, here = model(), model(enforce_eager=True), model("cpu")
    for seed, learn in enumerate([1, 1, 1, 0, 1]):
        requests = asked(64, seed, learn)
        (expected,) = here.run(requests)
        for face in (eager, graphed):
            (found,) = face.run(requests)
            torch.testing.assert_close(found["nll"].cpu(), expected["nll"], rtol=0, atol=1e-3)
            torch.testing.assert_close(
                found["prime_change"].cpu(), expected["prime_change"], rtol=0, atol=1e-3
            )
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.1), ("float16", 0.03)])
def test_sixteen_bits_are_near(dtype, tolerance):
    """By the mean of what losses are off; learning changes them by 0.17."""
    requests = asked(64, 1)
    ((found,), (wanted,)) = (
        model(device, of).run(requests) for device, of in (("cuda", dtype), ("cpu", "float32"))
    )
    assert (found["nll"].cpu() - wanted["nll"]).abs().mean() < tolerance
