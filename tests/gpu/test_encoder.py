"""The encoder's kernels and its graphs on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.engine.encoder import Encoder
from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from fastkernels.nn.batching import RUN_BYTES, together
from tests.encoder_cases import LINEAR_ACTIVATIONS, dense_case, linear_activation_case, resized
from tests.pointwise_cases import worst_row_error
from tests.provider_cases import others

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

ROWS = {
    "one": ([7], [7]),
    "equal": ([96, 96], [96, 96]),
    "ragged": ([5, 170, 1, 133], [5, 170, 1, 133]),
    "pooled": ([1, 1, 1], [5, 170, 33]),
    "pooled-equal": ([1, 1], [96, 96]),
}
IMPLEMENTATIONS = others("dense_attention")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 72, 128])
@pytest.mark.parametrize("rows", ROWS.values(), ids=list(ROWS))
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_dense_attention_against_the_formula(impl, rows, head_dim, dtype):
    case = dense_case(*rows, num_heads=2, head_dim=head_dim, dtype=dtype).on("cuda")
    if reason := registered["dense_attention"].why_not(impl, case.args):
        pytest.skip(reason)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "kind", [{"causal": True}, {"biased": True}, {"causal": True, "biased": True}], ids=str
)
@pytest.mark.parametrize("rows", ["equal", "ragged"])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_causal_and_biased_attention_against_the_formula(impl, rows, kind, dtype):
    case = dense_case(*ROWS[rows], num_heads=2, head_dim=64, dtype=dtype, **kind).on("cuda")
    if reason := registered["dense_attention"].why_not(impl, case.args):
        pytest.skip(reason)
    case.check(kernels.dense_attention(*case.args, impl=impl))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_captured_attention_serves_other_lengths_of_the_same_extent(impl):
    """Lengths are read on the device. What reads them on the host refuses (test below)."""
    first, second = (dense_case(lens, lens, 2, 64, torch.bfloat16, seed=i).on("cuda")
                     for i, lens in enumerate(([40, 90], [90, 40])))  # fmt: skip
    if impl in ("reference", "torch") or registered["dense_attention"].why_not(impl, first.args):
        pytest.skip("cannot serve rows of several lengths here")
    kernels.dense_attention(*first.args, impl=impl)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.dense_attention(*first.args, impl=impl)
    for old, new in zip(first.args[:5], second.args[:5], strict=True):
        old.copy_(new)
    graph.replay()
    second.check(out)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # nothing was launched before the refusal
def test_what_reads_lengths_on_the_host_is_not_captured():
    case = dense_case([40, 90], [40, 90], 2, 64, torch.bfloat16).on("cuda")
    with pytest.raises(KernelError, match="on the host"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        kernels.dense_attention(*case.args, impl="torch")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("impl", registered["resize_grid"].names)
def test_resize_grid_against_torch(impl, dtype):
    sizes = [(24, 24), (32, 32), (9, 30), (16, 16), (1, 1), (40, 1), (3, 5)]
    table = torch.randn(16, 16, 1152, generator=torch.Generator().manual_seed(0)).to(dtype)
    tokens = sum(height * width for height, width in sizes)
    out = kernels.resize_grid(table.cuda(), torch.tensor(sizes).cuda(), tokens, impl=impl)
    limit = 2 * 16 * torch.finfo(torch.float32).eps + (torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)
    assert worst_row_error(out, resized(table, sizes)) <= limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("impl", registered["sample_grid"].names)
def test_sample_grid_against_the_reference(impl, dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(48, 48, 1152, generator=generator).to(dtype)
    places = torch.cat((torch.rand(1000, 2, generator=generator), torch.tensor([[0.0, 0.0], [1.0, 1.0]])))
    wanted = kernels.sample_grid(places.double(), table.double(), impl="reference")
    out = kernels.sample_grid(places.cuda(), table.cuda(), impl=impl)
    limit = 2 * 48 * torch.finfo(torch.float32).eps + (torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)
    assert worst_row_error(out, wanted) <= limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LINEAR_ACTIVATIONS)
@pytest.mark.parametrize("rows", [(1,), (4, 8), (2, 300)], ids=str)
@pytest.mark.parametrize("impl", others("linear_activation"))
def test_linear_activation_against_the_formula(impl, rows, name, bias, dtype):
    given, wanted, limit = linear_activation_case(rows, 1152, 4304, name, dtype, bias)
    args = [None if part is None else part.cuda() for part in given]
    if reason := registered["linear_activation"].why_not(impl, [*args, name]):
        pytest.skip(reason)
    found = kernels.linear_activation(*args, name, impl=impl)
    assert found.is_contiguous()
    assert (found.cpu().double() - wanted).abs().max() < limit


def images(sizes: list[tuple[int, int]], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (*size, 3), generator=generator, dtype=torch.uint8) for size in sizes]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replayed_passes_equal_eager_ones(dtype):
    """The same shapes three times: eager, captured, replayed; with other grids of the same extent."""
    graphed = Encoder("siglip2", config="tiny", device="cuda", dtype=dtype)
    eager = Encoder("siglip2", config="tiny", device="cuda", dtype=dtype, enforce_eager=True)
    mixes = ([(48, 48), (8, 16)], [(48, 48), (16, 8)], [(16, 8), (72, 32)], [(8, 16), (32, 72)])
    # A stale input or another image's grid is wrong by about 1.
    tolerance = 1e-4 if dtype == "float32" else 0.1
    for seed, sizes in enumerate(mixes):
        expected = eager.encode(images(sizes, seed))
        torch.testing.assert_close(graphed.encode(images(sizes, seed)), expected, rtol=0, atol=tolerance)
    stats = graphed.stats()["forward"]
    assert (stats["graphs"], stats["graph_replays"]) == (1, 3)
    assert stats["eager_calls"] == {"first call of its shapes": 1}
    assert eager.stats()["forward"]["eager_calls"] == {"enforce_eager": 4}


@pytest.mark.parametrize("side", [100, 900])
def test_images_arrive_together(side):
    """Runs of several images, the last one shorter, and images longer than a run; pinned memory is not given
    to the next batch while the device, busy here, still has to fetch from it."""
    count = 2 * max(1, RUN_BYTES // (3 * side * side)) + 1
    batches = [torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8) for _ in range(4)]
    torch.cuda._sleep(50_000_000)
    sent = [together(list(batch), torch.device("cuda")) for batch in batches]
    for got, batch in zip(sent, batches, strict=True):
        assert torch.equal(got.cpu(), batch)


def test_cuda_agrees_with_the_cpu():
    sizes = [(48, 48), (48, 64), (8, 8), (16, 104)]
    here, there = (Encoder("siglip2", config="tiny", device=d, dtype="float32") for d in ("cpu", "cuda"))
    expected = here.encode(images(sizes, 7))
    torch.testing.assert_close(there.encode(images(sizes, 7)).cpu(), expected, rtol=0, atol=1e-4)
