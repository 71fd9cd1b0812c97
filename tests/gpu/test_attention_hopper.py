"""Our CUDA C++ attention for Hopper: every limit it states is served, graphs are replayed with other lengths.

The cases of test_attention_kernels.py run for it too, where it does not decline them. Each set of constants
is compiled at its first call, for about a second: few sets, each with several limits.
"""

import pytest
import torch

from fastkernels.kernels import counters, registered
from tests.attention_case import AttentionCase, attention_case

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs Hopper", allow_module_level=True)

pytestmark = pytest.mark.gpu
KERNELS = ["prefill_attention", "decode_attention"]
# What a tile holds, what a step holds, what a row ends with: lengths on both sides of each.
LENGTHS = [1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 640]
FACTS = {
    "head-64-groups-of-16": {"heads": (16, 1), "head_dim": 64},
    "head-80-groups-of-7-blocks-of-8": {"heads": (14, 2), "head_dim": 80, "block_size": 8},
    "head-128": {"heads": (8, 2), "head_dim": 128},
    "head-128-window": {"heads": (8, 2), "head_dim": 128, "window": 100},
    "head-128-no-groups-sinks": {"heads": (3, 3), "head_dim": 128, "sinks": True},
    "head-192-window-of-one": {"heads": (6, 2), "head_dim": 192, "window": 1},
    "head-256-blocks-of-256": {"heads": (8, 1), "head_dim": 256, "block_size": 256},
    "head-64-sinks-window": {"heads": (16, 2), "head_dim": 64, "sinks": True, "window": 128},
}
IN_HALVES = [(name, torch.bfloat16) for name in FACTS] + [("head-128", torch.float16)]


def arguments(kernel: str, case: AttentionCase) -> tuple:
    args = case.decode_args if kernel == "decode_attention" else case.prefill_args
    return tuple(0 if a is None else a for a in args)


def make(
    kernel: str, query_lens: list[int], seq_lens: list[int], dtype=torch.bfloat16, **facts
) -> AttentionCase:
    if kernel == "decode_attention":
        query_lens = [1] * len(seq_lens)
    return attention_case(query_lens, seq_lens, dtype=dtype, device="cuda", **facts)


@pytest.mark.parametrize(("name", "dtype"), IN_HALVES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_against_the_formula(kernel, name, dtype):
    for earlier in (0, 45):
        case = make(kernel, LENGTHS, [n + earlier for n in LENGTHS], dtype, **FACTS[name])
        args = arguments(kernel, case)
        assert registered[kernel].why_not("hopper", args) is None
        for _ in range(3):  # each launch leaves its counters as it found them
            case.check(registered[kernel](*args, impl="hopper"))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_dim", [128, 256])
def test_a_graph_with_other_lengths(kernel, head_dim):
    """Lengths and tables stay on the device: a captured call answers for those of its replay."""
    first = make(kernel, [150, 0, 70], [700, 0, 100], heads=(8, 2), head_dim=head_dim)
    then = make(kernel, [20, 150, 50], [300, 650, 50], heads=(8, 2), head_dim=head_dim, seed=1)
    names = ["query_THK", "query_starts_B1", "seq_lens_B", "block_tables_BN"]
    held = {name: torch.zeros_like(getattr(first, name)) for name in names}
    width = max(first.block_tables_BN.shape[1], then.block_tables_BN.shape[1])
    held["block_tables_BN"] = torch.zeros(3, width, dtype=torch.int32, device="cuda")
    blocks = max(len(first.k_cache), len(then.k_cache))
    caches = [
        torch.zeros(blocks, *first.k_cache.shape[1:], dtype=torch.bfloat16, device="cuda") for _ in "kv"
    ]

    def put(case: AttentionCase) -> None:
        for name, to in held.items():
            value = getattr(case, name)
            to[tuple(slice(0, n) for n in value.shape)].copy_(value)
        for to, value in zip(caches, (case.k_cache, case.v_cache), strict=True):
            to[: len(value)].copy_(value)

    def call() -> torch.Tensor:
        q, starts, lens, tables = (held[name] for name in names)
        if kernel == "decode_attention":
            args = (q, *caches, lens, tables, first.scale, 0, 700)
        else:
            args = (q, *caches, starts, lens, tables, first.scale, 0, 150, 700)
        return registered[kernel](*args, impl="hopper")

    put(first)
    call()
    counters.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for case in (first, then, first):
        put(case)
        graph.replay()
        case.check(out)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_long_row_and_many_rows(kernel):
    for queries, seqs in (
        ([900], [5000]),
        ([20, 162], [5000, 3000]),  # parts of tiles
        ([3] * 300, [n % 90 + 3 for n in range(300)]),
    ):
        case = make(kernel, queries, seqs, heads=(4, 1), head_dim=128)
        case.check(registered[kernel](*arguments(kernel, case), impl="hopper"))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_dim", [128, 256])
def test_bits_repeat(kernel, head_dim):
    case = make(kernel, [300, 5, 1], [3000, 2000, 70], heads=(8, 2), head_dim=head_dim)
    args = arguments(kernel, case)
    once = registered[kernel](*args, impl="hopper")
    case.check(once)
    assert all(torch.equal(once, registered[kernel](*args, impl="hopper")) for _ in range(10))
