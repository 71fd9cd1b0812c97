"""SGLang, DeepGEMM, QuACK, Liger and flash-linear-attention as implementations, on a GPU: values against
float64, CUDA graphs. SGLang's attention is among those of test_providers.py. Each test says why it is skipped
where its library is absent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fastkernels.kernels import registered
from tests import diffusion_cases as diffusion
from tests import mamba_cases as mamba
from tests import moe_cases as moe
from tests import pointwise_cases as rows_of
from tests import retrieval_cases as retrieval
from tests.gpu.test_attention_kernels import captured, or_skip
from tests.pointwise_cases import KernelCase, check, randn, run, to_device, worst_row_error
from tests.provider_cases import LIBRARIES, untuned

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

# What a library warns of when it is imported is no fault of ours.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

BF16 = torch.bfloat16
# A width costs a compilation: few of them.
ROWS = [(1, 4096), (33, 4096), (7, 131), (0, 4096)]
CASES = [
    *rows_of.rms_norm_cases(ROWS),
    *rows_of.add_rms_norm_cases(ROWS),
    *rows_of.layer_norm_cases(ROWS),
    *rows_of.add_layer_norm_cases(ROWS[:2]),
    *rows_of.gated_rms_norm_cases([(160, 128), (7, 131)]),
    *rows_of.softmax_cases([*ROWS, (3, 128256)]),
    *rows_of.glu_cases([(1, 14336), (130, 4096), (7, 33), (0, 64)]),
    *(c for c in rows_of.activation_cases([(65, 4096), (7, 33)]) if c.name.startswith(("relu2", "si"))),
    *rows_of.rope_cases([(33, 32, 8, 128, 128), (7, 4, 2, 64, 32), (0, 32, 8, 128, 128)]),
    *retrieval.l2_norm_cases(),
    *retrieval.sum_layer_norm_cases(),
    *diffusion.rope_pairs_cases([(1, 33, 24, 128), (2, 7, 3, 40)]),
    *rows_of.linear_cases([(1, 4096, 1024), (130, 1024, 4096), (33, 264, 72), (3, 33, 65)]),
    *rows_of.linear_glu_cases([(1, 4096, 512), (130, 1024, 2048), (33, 264, 72), (3, 33, 65)]),
]
# QuACK compiles for seconds: few widths of norms and softmax; one dtype, float32 where it serves no other.
SLOW_TO_COMPILE, OF_FLOAT32 = "quack", "add_rms_norm"
FEW = ("T33", "T7", "T0", "columns", "plus-one", "mean", "masked", "not-finite")
SERVED = [
    (case, impl)
    for case in CASES
    for impl in LIBRARIES
    if registered[case.kernel].implementation(impl)
    and not (
        impl == SLOW_TO_COMPILE and case.kernel.endswith(("norm", "max")) and not case.name.startswith(FEW)
    )
]
TYPICAL = {(case.kernel, impl): case for case, impl in reversed(SERVED)}


@pytest.fixture(autouse=True, scope="module")
def first_configurations() -> Iterator[None]:
    with untuned():
        yield


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("case", "impl"), SERVED, ids=str)
def test_against_the_formula(case: KernelCase, impl: str, dtype: torch.dtype, monkeypatch) -> None:
    """Strided views, odd widths, no rows; no argument is written."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for torch's deterministic mode
    if impl == SLOW_TO_COMPILE and dtype != (torch.float32 if case.kernel == OF_FLOAT32 else BF16):
        pytest.skip("as in the other dtype, after a compilation")
    or_skip(case.kernel, impl, to_device(case.make(dtype), "cuda"))
    check(case, dtype, impl, "cuda")


@pytest.mark.parametrize(("kernel", "impl"), TYPICAL)
def test_a_graph_replays_other_values(kernel: str, impl: str) -> None:
    case = TYPICAL[kernel, impl]
    dtypes = (BF16, torch.float32)  # some serve one of them
    given = [to_device(case.make(dtype), "cuda") for dtype in dtypes]
    args = next((a for a in given if registered[kernel].why_not(impl, a) is None), given[0])
    or_skip(kernel, impl, args)
    out = []
    graph = captured(lambda: out.append(run(kernel, args, impl)))
    for tensor in args:
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            tensor.mul_(0.5)
    graph.replay()
    for got, expected in zip(out[-1], run(kernel, args, impl), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(("is_shared", "is_weighted"), [(True, False), (False, True)])
@pytest.mark.parametrize(
    "shape",
    [
        moe.Shape(1, 8, 2, 64, 128),
        moe.Shape(5, 4, 2, 72, 320, experts_used=2),
        moe.Shape(97, 8, 2, 512, 256),
        moe.Shape(300, 3, 1, 128, 64, experts_used=1),
        moe.Shape(0, 4, 2, 64, 64),
    ],
    ids=str,
)
def test_deep_gemms_experts(shape: moe.Shape, is_shared: bool, is_weighted: bool) -> None:
    """Eager, and in a graph that is replayed with other lengths of the experts."""
    given = moe.grouped_arguments(shape, BF16, is_shared, is_weighted)
    x, weight, order, starts, weights = args = to_device(given, "cuda")
    or_skip("grouped_linear", "deep_gemm", args)
    (y,) = run("grouped_linear", args, "deep_gemm")
    answer = moe.grouped_answer(shape, *given[:2], given[4])
    assert worst_row_error(y, answer) <= 2 * torch.finfo(BF16).eps
    if not len(order):
        return
    (y,) = run("grouped_linear_glu", (x, weight, order, starts, "silu"), "deep_gemm")
    wide = (x.double(), weight.double(), order, starts, "silu")
    assert worst_row_error(y, run("grouped_linear_glu", wide, "reference")[0]) <= 4 * torch.finfo(BF16).eps
    out = []
    graph = captured(lambda: out.append(run("grouped_linear", args, "deep_gemm")))
    last = torch.full_like(starts, len(order))
    last[:-1] = 0  # all to the last expert
    starts.copy_(last)
    graph.replay()
    (expected,) = run("grouped_linear", (x, weight, order, last, weights), "reference")
    assert worst_row_error(out[-1][0], expected.double()) <= 4 * torch.finfo(BF16).eps


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 2, 4096), (300, 8, 2048), (65, 3, 80), (0, 2, 64), (300, 2, 24)], ids=str
)
def test_sgl_moe_sum(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x = randn(*shape, dtype=dtype)
    or_skip("moe_sum", "sgl_kernel", (x.cuda(),))
    (y,) = run("moe_sum", (x.cuda(),), "sgl_kernel")
    assert worst_row_error(y, x.double().sum(1)) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1, 8, 2), (33, 128, 8), (257, 60, 4), (0, 8, 2)], ids=str)
def test_sgl_routing(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Of logits that are apart, and near enough to each other for their probabilities in float32."""
    tokens, experts, top_k = shape
    places = [torch.randperm(experts, generator=torch.Generator().manual_seed(n)) for n in range(tokens)]
    logits = (torch.stack(places) / 8 if places else torch.empty(0, experts)).to("cuda", dtype)
    for renormalize in (False, True):
        args = (logits, top_k, renormalize, 1.0, None)
        or_skip("topk_softmax", "sgl_kernel", args)
        weights, ids = run("topk_softmax", args, "sgl_kernel")
        wanted, of = run("topk_softmax", (logits.double(), *args[1:]), "reference")
        assert torch.equal(ids, of)
        torch.testing.assert_close(weights.double(), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("lens", [(37, 1, 2, 130), (1,) * 9], ids=str)
def test_flas_convolutions_keep_their_inputs(lens: tuple[int, ...], dtype: torch.dtype) -> None:
    """States hold what tokens of this dtype were; some requests are shorter than the kernel."""
    case = mamba.conv(lens, channels=264, dtype=dtype)
    state = case.state.to(dtype).float()
    case = mamba.StateCase(case.kernels, case.tokens, case.others, state, case.rows_B, case.query_starts_B1)
    case = case.to("cuda")
    for is_update in (False, True) if set(lens) == {1} else (False,):
        or_skip(case.kernels[is_update], "fla", case.arguments(is_update, case.state))
        mamba.check(case, "fla", is_update)
