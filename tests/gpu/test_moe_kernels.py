"""Mixture-of-experts kernels and the model on CUDA: values, CUDA graphs under other routing, the engine."""

import pytest
import torch

from fastkernels import LLM, SamplingParams, kernels
from fastkernels.kernels import registered
from tests.moe_cases import (
    SHAPES,
    Shape,
    aligned,
    chosen,
    grouped_answer,
    grouped_arguments,
    ids_of,
    shuffled_and_straight,
)  # fmt: skip
from tests.pointwise_cases import poisoned, randn, to_device, worst_row_error

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

# Every tile size, odd numbers of tokens, widths that are no multiple of a tile, and one real expert layer.
LARGE = [
    Shape(33, 8, 2, 160, 136),
    Shape(200, 8, 2, 264, 200),
    Shape(1031, 8, 2, 512, 256),
    Shape(257, 128, 8, 192, 256),
    Shape(64, 8, 2, 28672, 4096),
]
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
IMPLEMENTATIONS = pytest.mark.parametrize("impl", ["reference", "triton", "torch"])


def or_skip(kernel: str, impl: str, args: tuple) -> None:
    if reason := registered[kernel].why_not(impl, args):
        pytest.skip(reason)


@DTYPES
@IMPLEMENTATIONS
@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(1, 8, 2), (1031, 8, 2), (257, 128, 8), (5, 60, 4)])
def test_routing(tokens, experts, top_k, impl, dtype):
    logits_TE = randn(tokens, experts, dtype=dtype, scale=2.0)
    for renormalize in (True, False):
        weights, ids = kernels.topk_softmax(logits_TE.cuda(), top_k, renormalize, impl=impl)
        expected_weights, expected_ids = chosen(logits_TE, top_k, renormalize)
        assert torch.equal(ids.cpu().long(), expected_ids)
        torch.testing.assert_close(weights.cpu().double(), expected_weights, rtol=1e-5, atol=0)


@IMPLEMENTATIONS
@pytest.mark.parametrize("experts", [8, 128, 512])
def test_ties_fall_to_the_lowest_ids(experts, impl):
    """A sort that is not stable shows only on a GPU."""
    logits_TE = torch.zeros(300, experts, device="cuda", dtype=torch.bfloat16)
    _, ids_TK = kernels.topk_softmax(logits_TE, 4, True, impl=impl)
    assert ids_TK.tolist() == [[0, 1, 2, 3]] * 300


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize("shape", [*SHAPES, *LARGE[:4], Shape(8192, 8, 2)], ids=str)
def test_alignment(shape, impl):
    ids_TK = ids_of(shape)
    found = kernels.moe_align(ids_TK.cuda(), shape.experts, impl=impl)
    for actual, expected in zip(found, aligned(ids_TK, shape.experts), strict=True):
        assert torch.equal(actual.cpu(), expected)


@DTYPES
@IMPLEMENTATIONS
@pytest.mark.parametrize(("is_shared", "is_weighted"), [(True, False), (False, True)])
@pytest.mark.parametrize("shape", [*SHAPES, *LARGE], ids=str)
def test_grouped_linear(shape, is_shared, is_weighted, impl, dtype, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    args = grouped_arguments(shape, dtype, is_shared, is_weighted)
    on_gpu = to_device(args, "cuda")
    or_skip("grouped_linear", impl, on_gpu)
    with poisoned():
        y_SN = kernels.grouped_linear(*on_gpu, impl=impl)
    error = worst_row_error(y_SN, grouped_answer(shape, args[0], args[1], args[4]))
    assert error <= {torch.float32: 8}.get(dtype, 1.5) * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_shuffled_tokens_give_shuffled_rows_bit_for_bit(dtype):
    shuffled, straight = shuffled_and_straight("triton", dtype, "cuda")
    assert torch.equal(shuffled, straight)


@pytest.mark.parametrize("impl", ["triton", "torch"])
def test_a_captured_product_follows_other_routing(impl):
    """The grid and the groups are decided on the device: a decode graph is replayed with other experts."""
    shape = Shape(37, 8, 2, 264, 200)
    x, weight, order, starts, _ = to_device(grouped_arguments(shape, torch.bfloat16, True, False), "cuda")
    or_skip("grouped_linear", impl, (x, weight, order, starts, None))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kernels.grouped_linear(x, weight, order, starts, impl=impl)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y_SN = kernels.grouped_linear(x, weight, order, starts, impl=impl)
    for seed in (1, 2):
        other = aligned(ids_of(Shape(37, 8, 2, experts_used=2 + seed), seed), 8)
        order.copy_(other[0])
        starts.copy_(other[1])
        graph.replay()
        assert torch.equal(y_SN, kernels.grouped_linear(x, weight, order, starts, impl=impl))


@DTYPES
@IMPLEMENTATIONS
def test_sum(impl, dtype):
    x_TKD = randn(130, 2, 4096, dtype=dtype)
    y_TD = kernels.moe_sum(x_TKD.cuda(), impl=impl)
    assert worst_row_error(y_TD, x_TKD.double().sum(1)) <= torch.finfo(dtype).eps


def test_our_kernels_serve_typical_calls():
    x, weight, order, starts, weights = to_device(
        grouped_arguments(Shape(8, 8, 2, 256, 128), torch.bfloat16, False, True), "cuda"
    )
    assert registered["grouped_linear"].choose((x, weight, order, starts, weights)) != "reference"
    assert registered["moe_align"].choose((order.view(8, 2), 8)) != "reference"
    assert registered["topk_softmax"].choose((x[:, :8], 2, True)) != "reference"


def test_greedy_text_is_that_of_the_cpu():
    def texts(device: str) -> list[list[int]]:
        llm = LLM(
            "mixtral", config="tiny", device=device, dtype="float32", num_kv_cache_blocks=200, max_num_seqs=8
        )
        generator = torch.Generator().manual_seed(3)
        prompts = [torch.randint(3, 256, (n,), generator=generator).tolist() for n in (5, 17, 2, 64, 1)]
        params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
        found = [out.outputs[0].token_ids for out in llm.generate(prompts, params)]
        assert device == "cpu" or llm.stats()["graph_replays"] >= 40
        return found

    assert texts("cuda") == texts("cpu")
