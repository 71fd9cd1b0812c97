"""l2_norm, summed_embedding and late_interaction on a GPU."""

from __future__ import annotations

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import registered
from tests.pointwise_cases import KernelCase, check, run, to_device
from tests.retrieval_cases import all_cases, late_interaction_cases

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

CASES = [(case, impl) for case in all_cases() for impl in registered[case.kernel].names]


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@pytest.mark.parametrize(("case", "impl"), CASES, ids=str)
def test_against_the_formula(case: KernelCase, impl: str, monkeypatch: pytest.MonkeyPatch):
    # Poisoning uses torch's deterministic mode, in which cuBLAS insists on a fixed workspace.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        if registered[case.kernel].why_not(impl, to_device(case.make(dtype), "cuda")):
            pytest.skip("cannot serve it")
        check(case, dtype, impl, "cuda")


@pytest.mark.parametrize("case", [all_cases()[0], *late_interaction_cases()[::2]], ids=str)
def test_a_captured_call_reads_new_values(case: KernelCase):
    args = to_device(case.make(torch.float16), "cuda")
    (wanted,) = run(case.kernel, args, "reference")
    for impl in registered[case.kernel].names:
        if registered[case.kernel].why_not(impl, args):
            continue
        blank = [
            torch.zeros_like(a) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
        ]
        run(case.kernel, tuple(blank), impl)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (out,) = run(case.kernel, tuple(blank), impl)
        for old, new in zip(blank, args):
            if is_float(old):
                old.copy_(new)
        graph.replay()
        torch.testing.assert_close(out, wanted, rtol=2e-3, atol=2e-3)


def test_similarities_never_go_to_memory():
    """10,000 documents of 180 tokens: their similarities with 32 tokens would be 230 MB."""
    query, docs = torch.randn(32, 128).cuda().half(), torch.randn(1_800_000, 128).cuda().half()
    kernels.late_interaction(query, docs, length=180, impl="triton")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kernels.late_interaction(query, docs, length=180, impl="triton")
    assert torch.cuda.max_memory_allocated() - before < 1 << 20
