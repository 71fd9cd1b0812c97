"""Production libraries as implementations, on a Hopper GPU: values against float64, CUDA graphs, what loading
them changes. Each test says why it is skipped where its package is absent.

B rows · H query heads · J key/value heads · K head dim
"""

from __future__ import annotations

import os
import sys

import pytest
import torch

from fastkernels.kernels import registered
from tests import pointwise_cases as rows_of
from tests.attention_case import AttentionCase, attention_case
from tests.encoder_cases import dense_case
from tests.gla_case import worst
from tests.gpu.test_attention_kernels import captured, check_decode_replays, or_skip
from tests.mla_case import TOLERANCE, MlaCase, make
from tests.moe_cases import Shape, ids_of
from tests.pointwise_cases import KernelCase, check, randn, to_device
from tests.provider_cases import PROVIDERS
from tests.unit.kernels.test_mxfp4 import ALPHA, MOST, glu_answer

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

# What a library warns of when it is imported or compiles is no fault of ours.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BF16, FP16 = torch.bfloat16, torch.float16
# Keys before a window are what other rows stored, which is finite: these libraries weight them with zero.
STORED = {"free_behind_window": False}
BIG = {"heads": (8, 2), "head_dim": 128}
TWO = {"query_lens": [21, 60], "seq_lens": [21, 100]}
PREFILL = {
    "mixed": {"query_lens": [5, 1, 133, 16], "seq_lens": [5, 1, 133, 16], **BIG},
    "chunks": {"query_lens": [50, 1, 133], "seq_lens": [700, 64, 200], **BIG},
    "rows-without-queries": {"query_lens": [0, 7, 0], "seq_lens": [9, 30, 4], **BIG},
    "window": {"query_lens": [150, 3], "seq_lens": [150, 400], "window": 133, **BIG, **STORED},
    "window-of-one": {"query_lens": [20, 3], "seq_lens": [20, 18], "window": 1, **BIG, **STORED},
    "sinks-window": {
        "query_lens": [150, 9],
        "seq_lens": [150, 300],
        "window": 128,
        "sinks": True,
        "heads": (16, 2),
        "head_dim": 64,
        **STORED,
    },
    "groups-of-7": {"heads": (14, 2), "head_dim": 128, **TWO},
    "no-groups": {"heads": (3, 3), "head_dim": 64, **TWO},
    "head-dim-80": {"heads": (4, 2), "head_dim": 80, **TWO},
    "head-dim-192": {"heads": (4, 2), "head_dim": 192, **TWO},
    "head-dim-256": {"heads": (4, 2), "head_dim": 256, "window": 30, **TWO, **STORED},
    "blocks-of-32": {"block_size": 32, **BIG, **TWO},
}
DECODE = {
    "mixed": {"seq_lens": [1, 15, 16, 17, 300, 1500], **BIG},
    "padding-rows": {"seq_lens": [5, 0, 640, 0], **BIG},
    "window": {"seq_lens": [3, 400, 900], "window": 333, **BIG, **STORED},
    "sinks-window": {
        "seq_lens": [3, 0, 200, 900],
        "window": 128,
        "sinks": True,
        "heads": (16, 2),
        "head_dim": 64,
        **STORED,
    },
    "sinks": {"seq_lens": [1, 0, 400, 1300], "sinks": True, "heads": (64, 8), "head_dim": 64},
    "groups-of-16": {"seq_lens": [21, 400], "heads": (16, 1), "head_dim": 128},
    "head-dim-80": {"seq_lens": [21, 400], "heads": (4, 2), "head_dim": 80},
    "head-dim-256": {"seq_lens": [21, 400], "heads": (8, 4), "head_dim": 256},
}
# Each variant of FlashAttention-4 is compiled at its first call, which takes seconds.
FEW = ("mixed", "chunks", "rows-without-queries", "padding-rows", "window", "sinks-window")
ATTENTION = [
    (kernel, name, impl)
    for kernel, cases in (("prefill_attention", PREFILL), ("decode_attention", DECODE))
    for name in cases
    for impl in PROVIDERS
    if impl != "flash_attn_4" or name in FEW
]
PACKED = [(impl, dims, causal) for impl in PROVIDERS for dims in (64, 72) for causal in (False, True)
          if impl != "flash_attn_4" or (dims, causal) == (64, False)]  # fmt: skip


def of_kernel(kernel: str, case: AttentionCase) -> tuple:
    args = case.decode_args if kernel == "decode_attention" else case.prefill_args
    return tuple(0 if a is None else a for a in args)


@pytest.mark.parametrize(("kernel", "name", "impl"), ATTENTION)
def test_attention_against_the_formula(kernel: str, name: str, impl: str) -> None:
    """Queries are slices of a packed projection; all that is behind a row's end is NaN."""
    facts = dict((PREFILL if kernel == "prefill_attention" else DECODE)[name])
    facts.setdefault("query_lens", [1] * len(facts["seq_lens"]))
    for dtype in (BF16,) if impl == "flash_attn_4" or "sinks" in facts else (BF16, FP16):
        case = attention_case(dtype=dtype, device="cuda", **facts)
        args = of_kernel(kernel, case)
        or_skip(kernel, impl, args)
        case.check(registered[kernel](*args, impl=impl))


@pytest.mark.parametrize("impl", PROVIDERS)
def test_rows_behind_decodes(impl: str) -> None:
    """Their starts are counted from the first of them."""
    case = attention_case([3, 20], [40, 20], heads=(8, 2), head_dim=128, dtype=BF16, device="cuda")
    args = list(of_kernel("prefill_attention", case))
    args[3] = args[3] + 5
    or_skip("prefill_attention", impl, tuple(args))
    case.check(registered["prefill_attention"](*args, impl=impl))


@pytest.mark.parametrize("impl", PROVIDERS)
def test_decode_graph_replays_with_other_lengths(impl: str) -> None:
    """Captured for rows of up to 2,000 keys; replayed with longer, shorter and empty rows."""
    lens = [[1, 300, 1500, 40], [1250, 3, 0, 0], [0, 0, 0, 0], [64, 65, 2000, 128]]
    check_decode_replays(impl, lens, 2000, **BIG)


@pytest.mark.parametrize("impl", PROVIDERS)
def test_prefill_graph_replays_with_other_values(impl: str) -> None:
    case = attention_case([130, 7], [130, 90], heads=(8, 2), head_dim=128, dtype=BF16, device="cuda")
    args = of_kernel("prefill_attention", case)
    or_skip("prefill_attention", impl, args)
    out = []
    graph = captured(lambda: out.append(registered["prefill_attention"](*args, impl=impl)))
    query = case.query_THK.clone()
    case.query_THK.zero_()
    graph.replay()
    assert case.error(out[-1]) > 0.1
    case.query_THK.copy_(query)
    graph.replay()
    case.check(out[-1])


@pytest.mark.parametrize(("impl", "head_dim", "causal"), PACKED)
def test_packed_rows(impl: str, head_dim: int, causal: bool) -> None:
    keys = [5, 170, 1, 133]
    case = dense_case(keys if causal else [1, 9, 1, 133], keys, 2, head_dim, BF16, causal=causal).on("cuda")
    or_skip("dense_attention", impl, case.args)
    case.check(registered["dense_attention"](*case.args, impl=impl))


def mla_args(case: MlaCase, is_decode: bool) -> tuple:
    longest, rows = int(case.seq_lens_B.max()), (case.seq_lens_B, case.block_tables_BM)
    if is_decode:
        return (case.q_THC, case.cache_NPC, *rows, case.scale, case.latent, longest)
    most = int(case.query_starts_B1.diff().max())
    return (case.q_THC, case.cache_NPC, case.query_starts_B1, *rows, case.scale, case.latent, most, longest)


@pytest.mark.parametrize("lens", [(1,), (200, 0, 33, 700)], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("impl", ["vllm", "flashmla"])
def test_latents_of_a_decode(impl: str, dtype: torch.dtype, lens: tuple[int, ...]) -> None:
    size = 64 if impl == "flashmla" else 16
    case = make([(1, n) for n in lens], 16, 512, 64, block_size=size, dtype=dtype).to("cuda")
    args = mla_args(case, is_decode=True)
    or_skip("mla_decode", impl, args)
    out = []
    graph = captured(lambda: out.append(registered["mla_decode"](*args, impl=impl)))
    out[-1].fill_(torch.nan)
    graph.replay()
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    answer = registered["mla_decode"](*wide, impl="reference")
    kept = case.seq_lens_B > 0
    assert (out[-1][~kept] == 0).all()
    assert worst(out[-1][kept].cpu(), answer[kept].cpu()) <= TOLERANCE[dtype]


def test_latents_of_a_prefill() -> None:
    case = make([(5, 70), (1, 33), (40, 40)], 16, 512, 64, dtype=BF16)
    args = mla_args(case.to("cuda"), is_decode=False)
    or_skip("mla_prefill", "vllm", args)
    o_THL = registered["mla_prefill"](*args, impl="vllm")
    assert o_THL.is_contiguous()
    assert worst(o_THL.cpu(), case.answer()) <= TOLERANCE[BF16]


SHAPES = [(1, 4096), (33, 4096), (7, 14336), (1000, 128), (65, 80), (13, 131), (0, 4096)]
ROW_WISE = [
    *rows_of.rms_norm_cases(SHAPES),
    *rows_of.add_rms_norm_cases(SHAPES),
    *rows_of.glu_cases([(1, 14336), (130, 4096), (300, 160), (7, 33), (0, 64)]),
]


@pytest.mark.parametrize("dtype", [BF16, FP16, torch.float32], ids=str)
@pytest.mark.parametrize("case", ROW_WISE, ids=str)
def test_rows(case: KernelCase, dtype: torch.dtype) -> None:
    """Strided views, odd widths, no rows; no argument is written."""
    or_skip(case.kernel, "vllm", to_device(case.make(dtype), "cuda"))
    check(case, dtype, "vllm", "cuda")


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_clamped_glu(dtype: torch.dtype) -> None:
    x = randn(257, 5760, dtype=dtype, scale=6.0)
    or_skip("clamped_glu", "vllm", (x.cuda(), ALPHA, MOST))
    y = registered["clamped_glu"](x.cuda(), ALPHA, MOST, impl="vllm").cpu()
    torch.testing.assert_close(y.double(), glu_answer(x), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_vllm_s_operators_leave_the_process_as_it_was() -> None:
    """vLLM itself is not imported: its import turns cuDNN's attention off and sets environment variables."""
    x, weight = torch.randn(3, 64, device="cuda", dtype=BF16), torch.ones(64, device="cuda", dtype=BF16)
    before = dict(os.environ), torch.backends.cuda.cudnn_sdp_enabled(), "vllm" in sys.modules
    or_skip("rms_norm", "vllm", (x, weight, 1e-6))
    registered["rms_norm"](x, weight, 1e-6, impl="vllm")
    assert (dict(os.environ), torch.backends.cuda.cudnn_sdp_enabled(), "vllm" in sys.modules) == before


@pytest.mark.parametrize("tokens", [1, 3, 130])
def test_experts(tokens: int) -> None:
    """vLLM is imported for them: what that changes of the process is put back."""
    before = dict(os.environ), torch.backends.cuda.cudnn_sdp_enabled()
    ids = ids_of(Shape(tokens, experts=8, top_k=2)).cuda()
    x, weights = randn(tokens, 256, dtype=BF16).cuda(), torch.rand(tokens, 2, device="cuda")
    w13 = randn(8, 2 * 512, 256, dtype=BF16, scale=256**-0.5, seed=1).cuda()
    w2 = randn(8, 256, 512, dtype=BF16, scale=512**-0.5, seed=2).cuda()
    args = (x, weights, ids, w13, w2, "silu")
    or_skip("experts", "vllm", args)
    y = registered["experts"](*args, impl="vllm")
    wide = [a.double() if isinstance(a, torch.Tensor) and a.dtype == BF16 else a for a in args]
    assert worst(y, registered["experts"](*wide, impl="reference").cpu()) <= 2**-6
    assert (dict(os.environ), torch.backends.cuda.cudnn_sdp_enabled()) == before


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 8, 2), (33, 128, 8), (257, 60, 4), (0, 8, 2)], ids=str)
def test_routing(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    tokens, experts, top_k = shape
    logits = torch.stack([torch.randperm(experts) for _ in range(tokens)] or [torch.empty(experts)])[:tokens]
    logits = (logits / 8).to("cuda", dtype)
    for renormalize in (False, True):
        args = (logits, top_k, renormalize)
        or_skip("topk_softmax", "vllm", args)
        weights, ids = registered["topk_softmax"](*args, impl="vllm")
        wanted, of = registered["topk_softmax"](logits.double(), top_k, renormalize, impl="reference")
        assert torch.equal(ids, of)
        torch.testing.assert_close(weights.double(), wanted, rtol=1e-5, atol=1e-7)
