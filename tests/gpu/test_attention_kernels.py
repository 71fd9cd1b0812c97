"""The paged-attention kernels and sample on CUDA: values, CUDA graphs, torch.compile."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from fastkernels.kernels.plans import plan_scope
from tests import rope_store_case
from tests.attention_case import AttentionCase, attention_case
from tests.provider_cases import others

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

BIG = {"heads": (32, 8), "head_dim": 128}
DECODE = {
    "one-row": dict(seq_lens=[1000], **BIG),
    "mixed": dict(seq_lens=[1, 15, 16, 17, 300, 2049], **BIG),
    "padding-rows": dict(seq_lens=[5, 0, 640, 0], **BIG),
    "many-rows": {"seq_lens": [7 * n % 97 + 1 for n in range(200)], "heads": (4, 2), "head_dim": 64},
    "window": dict(seq_lens=[3, 400, 900, 2000], window=333, **BIG),
    "window-of-one": dict(seq_lens=[1, 17, 40], window=1, **BIG),
    "blocks-of-256": dict(seq_lens=[9, 300], block_size=256, **BIG),
    "blocks-of-4": dict(seq_lens=[9, 300], block_size=4, **BIG),
    "no-groups": {"seq_lens": [21, 400], "heads": (3, 3), "head_dim": 128},
    "group-of-20": {"seq_lens": [21, 400], "heads": (20, 1), "head_dim": 128},
    "head-dim-16": {"seq_lens": [21, 400], "heads": (4, 2), "head_dim": 16},
    "head-dim-40": {"seq_lens": [21, 400], "heads": (4, 2), "head_dim": 40},
    "head-dim-64": {"seq_lens": [21, 400], "heads": (32, 8), "head_dim": 64},
    "head-dim-256": {"seq_lens": [21, 400], "heads": (8, 4), "head_dim": 256},
    "head-dim-512": {"seq_lens": [21, 400], "heads": (16, 2), "head_dim": 512},
    "sinks": {"seq_lens": [1, 0, 400, 3000], "heads": (64, 8), "head_dim": 64, "sinks": True},
    "sinks-window": {
        "seq_lens": [3, 200, 3000],
        "heads": (64, 8),
        "head_dim": 64,
        "window": 128,
        "sinks": True,
    },
}
PREFILL = {
    "one-row": dict(query_lens=[300], seq_lens=[300], **BIG),
    "equal-rows": dict(query_lens=[130, 130], seq_lens=[130, 130], **BIG),
    "many-rows": dict(query_lens=[5, 1, 133, 16], seq_lens=[5, 1, 133, 16], **BIG),
    "chunked": dict(query_lens=[50, 1, 133], seq_lens=[1000, 640, 400], **BIG),
    "rows-without-queries": dict(query_lens=[0, 7, 0, 130, 0], seq_lens=[9, 7, 0, 200, 4], **BIG),
    "window": dict(query_lens=[300, 3, 90], seq_lens=[300, 800, 1300], window=133, **BIG),
    "window-of-one": dict(query_lens=[200, 3], seq_lens=[200, 18], window=1, **BIG),
    "blocks-of-256": dict(query_lens=[9, 140], seq_lens=[9, 600], block_size=256, **BIG),
    "blocks-of-4": dict(query_lens=[9, 140], seq_lens=[9, 300], block_size=4, **BIG),
    "no-groups": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (3, 3), "head_dim": 128},
    "head-dim-16": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (4, 2), "head_dim": 16},
    "head-dim-40": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (4, 2), "head_dim": 40},
    "head-dim-64": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 2), "head_dim": 64},
    "head-dim-256": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (8, 4), "head_dim": 256},
    "head-dim-512": {"query_lens": [21, 140], "seq_lens": [21, 400], "heads": (16, 2), "head_dim": 512},
    "sinks": dict(query_lens=[50, 1, 133], seq_lens=[1000, 640, 400], sinks=True, **BIG),
    "sinks-window": dict(query_lens=[300, 90], seq_lens=[300, 1300], window=128, sinks=True, **BIG),
}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
ROUND = {"argnames": "dtype", "argvalues": DTYPES, "ids": str}


def arguments(kernel: str, case: AttentionCase) -> tuple:
    """As the kernel takes them, where the public function has None for no window."""
    args = case.decode_args if kernel == "decode_attention" else case.prefill_args
    return tuple(0 if a is None else a for a in args)


def make(kernel: str, name: str, dtype: torch.dtype, **changes) -> AttentionCase:
    facts = {**(DECODE if kernel == "decode_attention" else PREFILL)[name], **changes}
    facts.setdefault("query_lens", [1] * len(facts["seq_lens"]))
    return attention_case(dtype=dtype, device="cuda", **facts)


def every(*of: str) -> list[tuple[str, str]]:
    return [(kernel, name) for kernel in of for name in others(kernel)]


def or_skip(kernel: str, impl: str, args: tuple) -> None:
    if reason := registered[kernel].why_not(impl, args):
        pytest.skip(reason)


def big_case(
    kernel: str, query_lens: list[int], seq_lens: list[int], window: int | None = None
) -> AttentionCase:
    """A full-size bfloat16 problem, answered by the float64 reference (itself judged by the formula)."""
    tiny = attention_case([1], [1], heads=(32, 8), head_dim=128, dtype=torch.bfloat16, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    width = -(-max(seq_lens) // 16)
    num_blocks = len(seq_lens) * width + 1
    caches = [
        torch.randn(num_blocks, 16, 8, 128, device="cuda", generator=generator).bfloat16() for _ in "kv"
    ]
    tables = torch.randperm(num_blocks - 1, device="cuda", generator=generator) + 1
    case = replace(
        tiny,
        query_THK=2 * torch.randn(sum(query_lens), 32, 128, device="cuda", generator=generator).bfloat16(),
        k_cache=caches[0],
        v_cache=caches[1],
        query_starts_B1=torch.tensor([0, *query_lens], device="cuda").cumsum(0).int(),
        seq_lens_B=torch.tensor(seq_lens, dtype=torch.int32, device="cuda"),
        block_tables_BN=tables.int().view(len(seq_lens), width),
        window=window,
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
    )
    args = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in arguments(kernel, case)
    ]
    return replace(case, answer_THK=registered[kernel](*args, impl="reference"))


@pytest.mark.parametrize(**ROUND)
@pytest.mark.parametrize("name", DECODE)
@pytest.mark.parametrize("impl", others("decode_attention"))
def test_decode_against_the_formula(name, impl, dtype):
    case = make("decode_attention", name, dtype)
    args = arguments("decode_attention", case)
    or_skip("decode_attention", impl, args)
    case.check(registered["decode_attention"](*args, impl=impl))


@pytest.mark.parametrize(**ROUND)
@pytest.mark.parametrize("name", PREFILL)
@pytest.mark.parametrize("impl", others("prefill_attention"))
def test_prefill_against_the_formula(name, impl, dtype):
    case = make("prefill_attention", name, dtype)
    args = arguments("prefill_attention", case)
    or_skip("prefill_attention", impl, args)
    case.check(registered["prefill_attention"](*args, impl=impl))


@pytest.mark.parametrize("rows", [1, 32, 200])
@pytest.mark.parametrize("impl", others("decode_attention"))
def test_decode_at_full_size(rows, impl):
    case = big_case("decode_attention", [1] * rows, [(977 * n) % 4000 + 1 for n in range(rows)])
    or_skip("decode_attention", impl, arguments("decode_attention", case))
    case.check(registered["decode_attention"](*arguments("decode_attention", case), impl=impl))


@pytest.mark.parametrize("facts", [([2048] * 2, [2048] * 2, None), ([700, 1, 3000], [5000, 80, 3000], None),
                                   ([3000, 500], [3000, 6000], 1024)],
                         ids=["dense", "chunked", "window"])  # fmt: skip
@pytest.mark.parametrize("impl", others("prefill_attention"))
def test_prefill_at_full_size(facts, impl):
    case = big_case("prefill_attention", *facts)
    or_skip("prefill_attention", impl, arguments("prefill_attention", case))
    case.check(registered["prefill_attention"](*arguments("prefill_attention", case), impl=impl))


def test_the_oracle_fits_into_memory():
    """8,192 tokens of 32 heads in float64: below 4 GiB beside the arguments."""
    case = attention_case([1], [1], heads=(32, 8), head_dim=128, dtype=torch.float64, device="cuda")
    blocks = 512 + 1
    caches = [torch.randn(blocks, 16, 8, 128, dtype=torch.float64, device="cuda") for _ in "kv"]
    table = torch.arange(1, blocks, dtype=torch.int32, device="cuda")[None]
    length = torch.tensor([8192], dtype=torch.int32, device="cuda")
    query = torch.randn(8192, 32, 128, dtype=torch.float64, device="cuda")
    starts = torch.tensor([0, 8192], dtype=torch.int32, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    args = (query, *caches, starts, length, table, case.scale, None, 8192, 8192)
    assert kernels.prefill_attention(*args, impl="reference").isfinite().all()
    assert torch.cuda.max_memory_allocated() - before < 4 * 2**30


def captured(call) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def check_decode_replays(impl: str, lens: list[list[int]], longest: int, **shape: Any) -> None:
    """A step of `lens` keys for each row, each replayed from one graph for up to `longest`."""
    cases = [
        attention_case([1] * len(each), each, dtype=torch.bfloat16, device="cuda", seed=n, **shape)
        for n, each in enumerate(lens)
    ]
    blocks = max(case.k_cache.shape[0] for case in cases)
    width = max(case.block_tables_BN.shape[1] for case in cases)
    query = cases[0].query_THK.new_zeros(cases[0].query_THK.shape)
    caches = [query.new_zeros(blocks, *cases[0].k_cache.shape[1:]) for _ in "kv"]
    seq_lens = torch.ones(len(query), dtype=torch.int32, device="cuda")
    tables = torch.zeros(len(query), width, dtype=torch.int32, device="cuda")
    args = (query, *caches, seq_lens, tables, cases[0].scale, 0, longest)
    or_skip("decode_attention", impl, args)
    out = []
    graph = captured(lambda: out.append(registered["decode_attention"](*args, impl=impl)))
    for case in cases:
        query.copy_(case.query_THK)
        seq_lens.copy_(case.seq_lens_B)
        tables[:, : case.block_tables_BN.shape[1]] = case.block_tables_BN
        for cache, filled in zip(caches, (case.k_cache, case.v_cache), strict=True):
            cache.fill_(torch.nan)[: len(filled)] = filled
        out[-1].fill_(torch.nan)
        graph.replay()
        case.check(out[-1])


@pytest.mark.parametrize("impl", ["reference", "triton", "flash_attn", "torch"])
def test_decode_graph_replays_with_other_lengths(impl):
    """Captured for rows of up to 4,096 keys; replayed with longer, shorter, empty rows and other tables."""
    lens = [[1, 700, 3000, 40], [2500, 3, 0, 0], [0, 0, 0, 0], [64, 65, 4000, 128]]
    check_decode_replays(impl, lens, 4096, block_size=256 if impl == "flash_attn" else 16, **BIG)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize(("kernel", "impl"), every("prefill_attention"))
def test_prefill_graph(kernel, impl):
    """Device-side implementations replay with other values; those that plan on the host refuse a capture."""
    case = make(kernel, "equal-rows", torch.bfloat16)
    args = arguments(kernel, case)
    or_skip(kernel, impl, args)
    if impl == "reference":
        pytest.skip("reads lengths on the host by nature")
    out = []
    if impl in ("flashinfer", "torch"):
        with pytest.raises(KernelError, match="CUDA graph"):
            captured(lambda: out.append(registered[kernel](*args, impl=impl)))
        torch.cuda.synchronize()
        if impl == "flashinfer":
            with plan_scope(frozen=True):
                graph = captured(lambda: out.append(registered[kernel](*args, impl=impl)))
                replayed(graph, out, case)
        return
    graph = captured(lambda: out.append(registered[kernel](*args, impl=impl)))
    replayed(graph, out, case)


def replayed(graph, out, case) -> None:
    query = case.query_THK.clone()
    case.query_THK.zero_()
    graph.replay()
    assert case.error(out[-1]) > 0.1
    case.query_THK.copy_(query)
    graph.replay()
    case.check(out[-1])


def test_flashinfer_decode_in_a_frozen_scope():
    case = make("decode_attention", "mixed", torch.bfloat16)
    args = arguments("decode_attention", case)
    or_skip("decode_attention", "flashinfer", args)
    out = []
    with plan_scope(frozen=True):
        graph = captured(lambda: out.append(registered["decode_attention"](*args, impl="flashinfer")))
        replayed(graph, out, case)


@pytest.mark.parametrize(("kernel", "impl"), every("decode_attention", "prefill_attention"))
def test_layers_and_windows_share_a_scope(kernel, impl):
    """Global and sliding layers in turn, two layers each: every plan keeps to its own window."""
    first, second = (make(kernel, "window", torch.bfloat16, seed=n) for n in (1, 2))
    args, other = arguments(kernel, first), arguments(kernel, second)
    or_skip(kernel, impl, args)
    tensors = [a for a in args if isinstance(a, torch.Tensor)][3:]
    lengths = iter(tensors)
    other = tuple(next(lengths) if isinstance(a, torch.Tensor) and n >= 3 else a for n, a in enumerate(other))
    table, position = tensors[-1], next(n for n, a in enumerate(other) if a is tensors[-1])
    other = (*other[:position], second.block_tables_BN.clone(), *other[position + 1 :])
    wider = 4000
    unbounded = tuple(wider if n == position + 2 else a for n, a in enumerate(args))
    assert table is args[position]
    with plan_scope():
        for _ in range(2):
            first.check(registered[kernel](*args, impl=impl))
            assert not first.error(registered[kernel](*unbounded, impl=impl)) < 0.01
            second.check(registered[kernel](*other, impl=impl))


@pytest.mark.parametrize("impl", registered["store_kv"].names)
def test_store_kv(impl):
    for shape in ((1, 8, 128), (300, 8, 128), (33, 3, 40)):
        num_tokens, num_heads, head_dim = shape
        packed = torch.randn(num_tokens, 3 * num_heads * head_dim, device="cuda").bfloat16()
        key, value = (
            packed[:, i * num_heads * head_dim :][:, : num_heads * head_dim].view(shape) for i in (0, 1)
        )
        caches = [
            torch.full((64, 16, num_heads, head_dim), torch.nan, device="cuda").bfloat16() for _ in "kv"
        ]
        slots = torch.randperm(63 * 16, device="cuda")[:num_tokens] + 16
        graph = captured(lambda: kernels.store_kv(key, value, *caches, slots, impl=impl))  # noqa: B023
        slots.copy_(slots.flip(0))
        for cache in caches:
            cache.fill_(torch.nan)
        graph.replay()
        for cache, stored in zip(caches, (key, value), strict=True):
            flat = cache.flatten(0, 1)
            assert torch.equal(flat[slots], stored)
            assert flat.isnan().flatten(1).all(1).sum() == len(flat) - num_tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("impl", registered["rope_store_kv"].names)
def test_rope_store_kv(impl, dtype):
    """A decode step, a prefill, half of the dimensions, odd sizes: captured, then replayed to other slots."""
    shapes = ((1, 32, 8, 128, 128), (32, 32, 8, 128, 128), (300, 32, 8, 128, 64), (33, 6, 3, 40, 20))
    for shape in shapes:
        args = rope_store_case.make(shape, dtype, "cuda", block_size=16)
        out = []
        graph = captured(lambda: out.append(kernels.rope_store_kv(*args, impl=impl)))  # noqa: B023
        args[7].copy_(args[7].flip(0))
        for cache in args[5:7]:
            cache.fill_(torch.nan)
        wanted = rope_store_case.expected(args, None if impl == "parts" else impl)
        graph.replay()
        rope_store_case.same((out[-1], *args[5:7]), wanted)


def test_rope_store_kv_into_the_end_of_a_large_cache():
    """Offsets of 64 bits: caches of more than 2^31 elements."""
    args = list(rope_store_case.make((20_000, 8, 2, 128, 128), torch.bfloat16, "cuda", block_size=16))
    blocks = 2**31 // (16 * 2 * 128) + 2
    if torch.cuda.mem_get_info()[0] < 1.3 * 2 * 2 * 2**31:
        pytest.skip("needs 11 GB of device memory")
    args[5:7] = (torch.zeros(blocks, 16, 2, 128, dtype=torch.bfloat16, device="cuda") for _ in "kv")
    args[7] += 16 * (blocks - 1 - int(args[7].max()) // 16)
    wanted = kernels.rope(*args[:3], args[4], impl="triton")
    query = kernels.rope_store_kv(*args, impl="triton")
    found = (cache.flatten(0, 1)[args[7]] for cache in args[5:7])
    rope_store_case.same((query, *found), (*wanted, args[3]))
    assert args[5][-1].any()


def test_store_kv_under_inductor():
    key, value = torch.randn(2, 5, 2, 16, device="cuda").unbind()
    caches = [torch.zeros(4, 16, 2, 16, device="cuda") for _ in "kv"]
    slots = torch.arange(20, 25, device="cuda")

    @torch.compile(fullgraph=True)
    def stored(key, value, k_cache, v_cache, slots):
        before = k_cache.sum()
        kernels.store_kv(key * 2, value, k_cache, v_cache, slots)
        return before, k_cache.abs().sum()

    before, after = stored(key, value, *caches, slots)
    assert before == 0
    torch.testing.assert_close(after, (2 * key).abs().sum())
    assert torch.equal(caches[1].flatten(0, 1)[20:25], value)


@pytest.mark.parametrize("limits", ["none", "top_k", "both"])
def test_sample_draws_the_reference_s_ids(limits):
    rows, vocabulary = 64, 128256
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(rows, vocabulary, device="cuda", generator=generator) * 4
    heat = torch.linspace(0, 2, rows, device="cuda")
    top_k = torch.arange(rows, dtype=torch.int32, device="cuda") * 5 if limits != "none" else None
    top_p = torch.linspace(0.2, 1, rows, device="cuda") if limits == "both" else None
    seeds, positions = (
        torch.randint(0, 2**60, (rows,), device="cuda", generator=generator) for _ in range(2)
    )
    args = (logits, heat, top_k, top_p, seeds, positions)
    expected = kernels.sample(*args, impl="reference")
    # Scores of float32 differ in their last bits: of a few near ties one may fall the other way.
    assert (kernels.sample(*args, impl="triton") != expected).sum() <= 1
    assert len(expected.unique()) > rows // 2


def test_sample_distribution():
    """Chi-square of 100,000 draws from 50 ids."""
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1)).cuda() * 1.5
    count = 100_000
    args = (logits.expand(count, -1).contiguous(), torch.full((count,), 0.8, device="cuda"), None, None,
            torch.zeros(count, dtype=torch.int64, device="cuda"),
            torch.arange(count, device="cuda"))  # fmt: skip
    expected = (logits.double() / 0.8).softmax(0) * count
    chi_square = (
        (torch.bincount(kernels.sample(*args, impl="triton"), minlength=50) - expected) ** 2 / expected
    ).sum()
    assert chi_square < 86  # chance 0.001 with 49 degrees of freedom


def test_sample_graph():
    """One graph serves greedy and drawn rows: temperatures, seeds and logits are read on the device."""
    rows, vocabulary = 9, 32000
    logits = torch.zeros(rows, vocabulary, device="cuda")
    heat = torch.zeros(rows, device="cuda")
    seeds, positions = (torch.zeros(rows, dtype=torch.int64, device="cuda") for _ in range(2))
    out = []
    graph = captured(
        lambda: out.append(kernels.sample(logits, heat, None, None, seeds, positions, impl="triton"))
    )
    for n in range(3):
        logits.normal_()
        heat.copy_(torch.tensor([0.0, 1.0, 0.5] * 3))
        positions.fill_(n)
        graph.replay()
        expected = kernels.sample(logits, heat, None, None, seeds, positions, impl="reference")
        assert (out[-1] != expected).sum() <= 1
