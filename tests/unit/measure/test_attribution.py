"""Who made a kernel, by its name."""

from pathlib import Path

import pytest

from fastkernels.loader.authored import kernel_names
from fastkernels.measure.attribution import Launched, base_name, origin, shares

MINE = frozenset({"_norm_rows", "fused_norm", "triton_poi_fused_mul_0"})


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("_norm_rows", "authored"),
        ("void mine::fused_norm<__nv_bfloat16, 4>(__nv_bfloat16*, int)", "authored"),
        ("fused_norm(float*, float*)", "authored"),
        ("_normalise_rows", "vendor"),  # the baseline's Triton kernel, called from a candidate
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "vendor"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(int)", "vendor"),
        ("flashinfer::BatchDecodeWithPagedKVCacheKernel<4>(int)", "vendor"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)", "torch"),
        ("Memcpy DtoD (Device -> Device)", "torch"),
        ("Memset (Device)", "torch"),
        ("triton_red_fused_mul_0", "inductor"),
        ("triton_poi_fused_mul_0", "inductor"),  # whatever a candidate calls its own
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", "nccl"),
    ],
)
def test_origin(kernel: str, expected: str):
    assert origin(kernel, MINE) == expected


def test_shares_are_of_time_and_not_of_launches():
    launched = [Launched("_norm_rows", 3000), Launched("Memset (Device)", 500), Launched("nvjet_x", 500)]
    assert shares(launched, MINE) == {"authored": 0.75, "torch": 0.125, "vendor": 0.125}
    assert shares([], MINE) == {}


def test_base_name():
    assert base_name("void ns::scale<float, 4>(float*)") == "scale"
    assert base_name("scale") == "scale"


PYTHON = '''
import torch, triton
from torch.utils.cpp_extension import load_inline

SOURCE = """
template <typename T>
__global__ void __launch_bounds__(256) inline_norm(T* x, int n) { helper(x); }
__global__ static void other_one (float *x) {}
"""
# __global__ void commented_out(

@triton.jit
def _norm_rows(x, y): ...

class RMSNorm:
    def forward(self, x): return "nvjet_sm90_tst"
'''


def test_names_are_those_that_files_define(tmp_path: Path):
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(PYTHON)
    (tmp_path / "broken.py").write_text("def x(:")
    (tmp_path / "kernels.cu").write_text('extern "C" __global__ void scale_rows(float* x) { not_mine(x); }')
    found = kernel_names([tmp_path])
    assert {"inline_norm", "other_one", "_norm_rows", "scale_rows"} <= found
    assert not found & {"helper", "commented_out", "nvjet_sm90_tst", "not_mine", "x"}
