"""Every implementation of the row-wise kernels on CUDA: values, CUDA graphs, torch.compile. Libraries that
compile or tune for seconds at each width have fewer cases: test_providers*.py."""

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import registered
from fastkernels.kernels.choice import IN_TRITON
from tests import diffusion_cases as diffusion
from tests import pointwise_cases as cases
from tests.pointwise_cases import KernelCase, check, run, to_device
from tests.provider_cases import others

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

# A decode step, a prefill, odd and prime sizes, and the widths of 8B and 70B models.
ROWS = [
    (1, 4096),
    (33, 4096),
    (300, 8192),
    (7, 14336),
    (1, 16384),
    (1000, 128),
    (65, 80),
    (13, 131),
    (0, 4096),
    (3, 1),
]
CASES = [
    *cases.rms_norm_cases(ROWS),
    *cases.add_rms_norm_cases(ROWS),
    *cases.glu_cases([(1, 14336), (130, 4096), (300, 160), (7, 33), (0, 64)]),
    *cases.gated_rms_norm_cases([(1, 512), (160, 512), (5, 4096), (13, 131), (0, 512)]),
    *cases.add_layer_norm_cases([(1, 1280), (18432, 1152), (13, 131), (0, 64)]),
    *cases.layer_norm_cases([(1, 1152), (33, 1152), (18432, 1152), (65, 80), (13, 131), (0, 64), (3, 1)]),
    *cases.activation_cases([(1, 4304), (576, 4304), (1061, 1280), (300, 160), (7, 33), (0, 64)]),
    *cases.softmax_cases([*ROWS, (5, 128256), (2, 16385), (1, 151936)]),
    *cases.embedding_cases(),
    *cases.linear_cases([(1, 4096, 6144), (2, 14336, 4096), (8, 4096, 96), (16, 4096, 1024),
                         (130, 1024, 4096), (3, 33, 65), (4, 4096, 4097), (3, 14336, 1024)]),
    *cases.linear_float32_cases([(1, 4096, 128256), (2, 1024, 512), (8, 4096, 96), (32, 4096, 4097),
                                 (31, 200, 1500), (130, 1024, 4096), (800, 2048, 300), (3, 33, 65)]),
    *cases.linear_glu_cases([(1, 4096, 14336), (2, 1024, 512), (3, 2056, 129), (4, 4096, 1024),
                             (16, 4096, 700), (32, 4096, 1024), (31, 200, 1500), (130, 1024, 2048),
                             (3, 33, 65), (0, 64, 8)]),
    *cases.rope_cases([(1, 32, 8, 128, 128), (300, 32, 8, 128, 128), (33, 64, 8, 128, 64), (7, 14, 2, 64, 64),
                       (5, 3, 1, 80, 20), (17, 4, 2, 16, 16), (0, 32, 8, 128, 128)]),
    *diffusion.modulated_layer_norm_cases([(1, 4608, 3072), (4, 512, 3072), (3, 7, 80), (2, 0, 64)]),
    *diffusion.rope_pairs_cases([(1, 4608, 24, 128), (4, 37, 24, 128), (2, 7, 3, 40), (1, 0, 2, 16)]),
    *diffusion.sinusoidal_cases(),
    *diffusion.group_norm_cases([(1, 128, 128, 512, 32), (2, 256, 256, 128, 32), (3, 7, 5, 24, 8),
                                 (0, 4, 4, 8, 2)]),
    *diffusion.upsample_cases([(1, 128, 128, 512), (3, 7, 5, 24), (0, 4, 4, 8)]),
]  # fmt: skip
IMPLEMENTATIONS = sorted((k, name) for k in registered for name in others(k) if name != "reference")
OURS = [(case, impl) for case in CASES for kernel, impl in IMPLEMENTATIONS if kernel == case.kernel]
# One call of each kernel for the tests that are about launching, not about shapes.
TYPICAL = [next(c for c in CASES if c.kernel == kernel) for kernel in dict.fromkeys(c.kernel for c in CASES)]


@pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled")  # Inductor says so of long rows
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("case", "impl"), OURS, ids=str)
def test_against_the_formula(case: KernelCase, impl: str, dtype: torch.dtype, monkeypatch) -> None:
    # Poisoning uses torch's deterministic mode, in which cuBLAS insists on a fixed workspace.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if reason := registered[case.kernel].why_not(impl, to_device(case.make(dtype), "cuda")):
        pytest.skip(reason)
    check(case, dtype, impl, "cuda")


def test_gelu_is_accurate_in_its_tail() -> None:
    cases.check_gelu_tail("triton", "cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_on_cuda(case: KernelCase, dtype: torch.dtype, monkeypatch) -> None:
    """Within rounding of the exact answer by itself, not by the ratio to itself."""
    args = to_device(case.make(dtype), "cuda")
    for out, exact in zip(run(case.kernel, args, "reference"), case.answer(*case.make(dtype)), strict=True):
        finite = torch.isfinite(exact).all(-1)
        sums = 2 if case.kernel == "linear_glu" else 1  # that are multiplied, each with its error
        limit = 4 * sums * torch.finfo(dtype).eps if dtype != torch.float64 else 1e-12
        assert cases.worst_row_error(out.cpu()[finite], exact[finite]) <= limit


@pytest.mark.parametrize("case", TYPICAL, ids=str)
def test_every_implementation_is_captured(case: KernelCase) -> None:
    """A CUDA graph replays the call on new values at the old addresses, bitwise as an eager call computes
    them.
    """
    args = to_device(case.make(torch.bfloat16), "cuda")
    captured = 0
    for impl in others(case.kernel):
        if registered[case.kernel].why_not(impl, args):
            continue
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(case.kernel, args, impl)  # compiles what compiles on first use
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = run(case.kernel, args, impl)
        for tensor in args:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.mul_(0.5)
        graph.replay()
        for got, expected in zip(outputs, run(case.kernel, args, impl), strict=True):
            assert torch.equal(got, expected), impl
        captured += 1
    assert captured >= 2


@pytest.mark.parametrize("case", TYPICAL, ids=str)
def test_the_chosen_implementation_serves_typical_calls(case: KernelCase) -> None:
    """In bf16 nothing that the device's table prefers is passed over."""
    args = to_device(case.make(torch.bfloat16), "cuda")
    before = dict(kernels.skipped)
    chosen = registered[case.kernel].choose(args)
    assert chosen != "reference" or not registered[case.kernel].implementations
    installed = {i.name for i in registered[case.kernel].implementations if not i.missing}
    new = {key: n for key, n in kernels.skipped.items() if n != before.get(key, 0) and key[1] in installed}
    # FlashInfer's conditions are its own; what we wrote serves everything typical.
    assert not [key for key in new if key[1] in IN_TRITON]


def test_rows_beyond_two_to_the_31() -> None:
    """Offsets of 64 bits: the last row of a tensor of more than 2^31 elements."""
    rows, dim = 131_073, 16_384
    if torch.cuda.mem_get_info()[0] < 3 * rows * dim * 2 * 1.2:
        pytest.skip("needs 16 GB of device memory")
    x = torch.zeros(rows, dim, dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.arange(dim, device="cuda") % 7
    weight = torch.ones(dim, dtype=torch.bfloat16, device="cuda")
    last = x[-1:].clone()
    for got, expected in [
        (
            kernels.rms_norm(x, weight, 1e-6, impl="triton")[-1:],
            kernels.rms_norm(last, weight, 1e-6, impl="triton"),
        ),
        (kernels.softmax(x, impl="triton")[-1:], kernels.softmax(last, impl="triton")),
        (kernels.glu(x, "silu", impl="triton")[-1:], kernels.glu(last, "silu", impl="triton")),
    ]:
        assert torch.equal(got, expected)


def test_inductor_graph_around_our_kernels() -> None:
    """The operators inside a module that torch compiles whole give what eager gives."""

    def layer(x, residual, weight, up):
        y, residual = kernels.add_rms_norm(x, residual, weight, 1e-5)
        return kernels.glu(kernels.linear(y, up), "silu"), residual

    x = torch.randn(17, 256, dtype=torch.bfloat16, device="cuda")
    weight, up = torch.ones_like(x[0]), torch.randn(512, 256, dtype=torch.bfloat16, device="cuda") / 16
    with torch.inference_mode():
        got = torch.compile(layer, fullgraph=True)(x, x, weight, up)
        for a, b in zip(got, layer(x, x, weight, up), strict=True):
            assert torch.equal(a, b)
