"""Nsight Compute and compute-sanitizer on this machine: what they print is what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastkernels import registry
from fastkernels.loader.authored import kernel_names
from fastkernels.profiling import ncu, sanitizer, tools

if not torch.cuda.is_available():
    pytest.skip("needs CUDA", allow_module_level=True)

pytestmark = pytest.mark.gpu

# One thing wrong for each tool, in a line of its own.
FLAWED = '''
import torch
from fastkernels.baseline.L1.rms_norm import RMSNorm as Baseline

SOURCE = """
extern "C" __global__ void flawed(const float* x, const float* unset, float* y, int n) {
    __shared__ float held[256];
    int i = threadIdx.x;
    held[i] = x[i];
    float s = held[(i + 37) % 256];  // RACE
    if (i < 100) __syncthreads();  // BARRIER
    s += held[(i + 5) % 256] + unset[i];  // UNSET
    y[i] = s;
    if (i == 0) y[n] = s;  // BEYOND
}
"""
kernel = torch.cuda._compile_kernel(SOURCE, "flawed", nvcc_options=["-lineinfo"])


class RMSNorm(Baseline):
    def forward(self, x, residual=None):
        y, unset = torch.empty_like(x), torch.empty(256, device=x.device)
        kernel((1, 1, 1), (256, 1, 1), [x, unset, y, y.numel()])
        return y
'''
MARKS = {"memcheck": "BEYOND", "racecheck": "RACE", "initcheck": "UNSET", "synccheck": "BARRIER"}
WORDS = {
    "memcheck": "Invalid __global__ write of size 4 bytes",
    "racecheck": "race between",
    "initcheck": "Uninitialized __global__ memory read",
    "synccheck": "Barrier error",
}


@pytest.mark.skipif(tools.SANITIZER.find() is None, reason="no compute-sanitizer")
def test_each_tool_finds_its_flaw_in_its_line(tmp_path: Path) -> None:
    file = tmp_path / "flawed" / "L1" / "rms_norm.py"
    file.parent.mkdir(parents=True)
    file.write_text(FLAWED)
    case = next(c for c in registry.cases("L1/rms_norm", "tiny", "llama") if c.id.endswith("T16-D64-f32"))
    layers = [file.parents[1]]
    lines = FLAWED.partition('SOURCE = """')[2].splitlines()
    found = sanitizer.sanitize("flawed", case, layers, kernel_names(layers))
    assert [one.tool for one in found] == list(MARKS)
    for one in found:
        told = f"{one.tool}: {one.problem}, {one.findings}"
        at = [n for n, line in enumerate(lines, 1) if MARKS[one.tool] in line]
        places = [(f.kernel, f.authored, f.line) for f in one.findings if f.what.startswith(WORDS[one.tool])]
        near = [("flawed", True, n) for line in at for n in (line - 1, line)]  # a race names either access
        assert set(places) & set(near), told


@pytest.mark.skipif(tools.NCU.find() is None, reason="no Nsight Compute")
def test_what_limits_a_call_that_moves_memory() -> None:
    case = next(
        c for c in registry.cases("L1/rms_norm", "full", "llama") if c.id.endswith("T8192-D4096-bf16")
    )
    found = ncu.profile(case, [])
    (kernel,) = found.kernels
    bytes_moved = 2 * 2 * 8192 * 4096  # read and written; some of what is written stays in L2
    assert 0.4 * bytes_moved < kernel.us * 1e-6 * (kernel.dram_gb_s or 0) * 1e9 < 1.2 * bytes_moved
    assert None not in (kernel.l2_pct, kernel.compute_pct, kernel.occupancy_pct, kernel.registers)
    assert kernel.waves is not None
    assert kernel.waves > 1
    assert found.limit.startswith(("limited by", "latency"))
