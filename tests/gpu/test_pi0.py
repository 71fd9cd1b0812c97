"""pi0 on a GPU: attention with shared keys and rows without queries, its launches and their graphs."""

from __future__ import annotations

import pytest
import torch

from fastkernels import Model, kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from tests.encoder_cases import dense_case
from tests.unit.engine.test_policy import observation

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu
# A step of one observation, a prefix, the states of two observations before room for their actions.
ROWS = {"flow": ([50], [867]), "read": ([304], [304]), "sense": ([1, 0, 1], [273, 50, 273])}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=list(ROWS))
def test_eight_heads_of_256_over_one_of_keys(rows, dtype):
    case = dense_case(*rows, num_heads=8, num_kv_heads=1, head_dim=256, dtype=dtype).on("cuda")
    served = []
    for impl in registered["dense_attention"].names[1:]:
        try:
            found = kernels.dense_attention(*case.args, impl=impl)
        except KernelError:
            continue
        case.check(found)
        served.append(impl)
    assert "triton" in served, served


def policy(dtype: str, device: str = "cuda", **options) -> Model:
    return Model("pi0", config="tiny", device=device, dtype=dtype, **options)


# Random weights make float32's own order of sums 1e-5 of the actions; another observation is off by about 1.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_replayed_launches_equal_eager_ones(dtype, tolerance):
    """Pairs of one form four times: eager, captured, replayed; then one alone and the first form again."""
    graphed, eager = policy(dtype), policy(dtype, enforce_eager=True)
    for seed, count in enumerate([2, 2, 2, 2, 1, 2]):
        asked = [observation(10 * seed + i) for i in range(count)]
        for ours, theirs in zip(graphed.run(asked), eager.run(asked), strict=True):
            torch.testing.assert_close(ours["actions"], theirs["actions"], rtol=0, atol=tolerance)
    stats = graphed.stats()["sample_actions"]
    assert stats["eager_calls"].keys() == {"first call of its shapes"}, stats
    assert (stats["graphs"], stats["graph_replays"]) == (1, 4)


# Root mean squares of what actions are off: on a CPU 0.1 to 0.3 in bfloat16; other images move them by 1.4.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.5), ("float16", 0.1)])
def test_cuda_agrees_with_the_cpu(dtype, tolerance):
    asked = [observation(0), observation(1, cameras=1), observation(2), observation(3, tokens=3)]
    for ours, theirs in zip(policy(dtype).run(asked), policy("float32", "cpu").run(asked), strict=True):
        assert (ours["actions"].cpu() - theirs["actions"]).square().mean().sqrt() < tolerance
