"""cross_attention on CUDA: values at the length of a real source, and captured calls."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import counters, registered
from tests.cross_case import CrossCase, cross_case

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

KEYS = 1500
# With 4 heads: from 24 splits of one tile to none.
ROWS = {
    "one": [1],
    "several": [1] * 7,
    "many": [1] * 80,
    "prompts": [4] * 3,
    "ragged": [1, 4, 0, 16, 1],
    "long-prompts": [1, 40, 0, 1, 17],
}
IMPLEMENTATIONS = registered["cross_attention"].names


def or_skip(impl: str, case: CrossCase) -> None:
    if reason := registered["cross_attention"].why_not(impl, case.args):
        pytest.skip(reason)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("lens", ROWS.values(), ids=list(ROWS))
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_against_the_formula(impl, lens, dtype):
    case = cross_case(lens, KEYS, num_heads=4, head_dim=64, dtype=dtype).on("cuda")
    or_skip(impl, case)
    case.check(kernels.cross_attention(*case.args, impl=impl))


@pytest.mark.parametrize("longest", [16, 40])
def test_a_captured_call_serves_other_rows_of_the_same_bound(longest):
    """Starts and rows are read on the device, and every replay finds its counters at zero."""
    mixes = ([longest, 1, 4], [1, 4, longest], [4, longest, 1])
    first, *others = (
        cross_case(lens, KEYS, num_heads=4, head_dim=64, dtype=torch.float16, seed=seed).on("cuda")
        for seed, lens in enumerate(mixes)
    )
    kernels.cross_attention(*first.args, impl="triton")
    counters.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.cross_attention(*first.args, impl="triton")
    graph.replay()
    first.check(out)
    for other in others:
        for old, new in zip(first.args[:5], other.args[:5], strict=True):
            old.copy_(new)
        graph.replay()
        other.check(out)
