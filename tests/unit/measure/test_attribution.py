"""Who made a kernel, by its name."""

from pathlib import Path

import pytest

from fastkernels.loader.authored import kernel_names
from fastkernels.measure.attribution import Launched, largest, origin, qualified_name, shares

MINE = frozenset({"_norm_rows", "fused_norm", "scale", "triton_poi_fused_mul_0", "Kernel2", "nvjet_mine"})


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("_norm_rows", "authored"),
        ("void mine::fused_norm<__nv_bfloat16, 4>(__nv_bfloat16*, int)", "authored"),
        ("fused_norm(float*, float*)", "authored"),
        ("void scale<c10::BFloat16>(c10::BFloat16*, int)", "authored"),
        ("void scale<at::Half>(at::Half const*, std::array<char*, 2ul>)", "authored"),
        ("scale(c10::BFloat16*, int)", "authored"),
        ("void (anonymous namespace)::scale<float>(float*)", "authored"),
        ("void mine::<unnamed>::scale<(int)4, (bool)1>(float*)", "authored"),
        ("std::enable_if<(4 > 2), void>::type mine::scale<float>(float*)", "authored"),
        ("void at::native::(anonymous namespace)::scale<float>(float*)", "torch"),
        ("void cub::scale<float>(float*)", "vendor"),
        ("void vllm::scale<float>(float*)", "vendor"),
        ("nvjet_mine", "vendor"),  # a library's prefix
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


def test_the_largest_kernels_by_name():
    launched = [
        Launched("void mine::scale<float>(float*)", 500),
        Launched("void mine::scale<c10::Half>(c10::Half*)", 100),
        Launched("Memset (Device)", 300),
        *(Launched(f"evil\x1b{n}", 10) for n in range(10)),
    ]
    first, second, *rest = largest(launched, MINE)
    assert (first.name, first.origin, first.share) == ("mine::scale", "authored", 0.6)
    assert (second.name, second.origin, second.share) == ("Memset (Device)", "torch", 0.3)
    assert [kernel.name for kernel in rest] == ["evil?0", "evil?1", "evil?2"]
    assert largest([], MINE) == ()


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void ns::scale<float, 4>(float*)", "ns::scale"),
        ("scale", "scale"),
        ("void (anonymous namespace)::scale(float*)", "scale"),
        (
            "void at::native::unrolled<at::copy(at::Base&)::{lambda()#3}::operator()() const>(int)",
            "at::native::unrolled",
        ),
        ("", ""),
        ("void", "void"),
        ("a<b", "a"),
    ],
)
def test_the_qualified_name(kernel: str, name: str):
    assert qualified_name(kernel) == name


PYTHON = '''
"""Docstrings launch nothing: __global__ void in_a_docstring(float* x) {}"""
import torch, triton
import triton as tr
import cutlass.cute as cute
from triton import jit
from triton.experimental import gluon
from torch.utils.cpp_extension import load_inline

SOURCE = """
template <typename T>
__global__ void __launch_bounds__(max(256, 128), 2) inline_norm(T* x, int n) { helper(x); }
__global__ static void other_one (float *x) {}
// __global__ void in_a_comment(float* x) {}
// goes on \\
__global__ void in_its_next_line(float* x) {}
/* __global__ void in_a_long_comment(float* x) {} */
char quote = '"'; const char* text = "__global__ void in_a_string(float* x) {}";
"""
# __global__ void commented_out(

@triton.jit
def _norm_rows(x, y): ...

@triton.autotune(configs=[], key=[])
@tr.jit(do_not_specialize=["n"])
def _tuned(x, n): ...

@jit
def _bare(x): ...

@gluon.jit
def _gluon(x): ...

def _wrapped(x): ...
wrapped = triton.jit(_wrapped)

@cute.kernel
def dsl(x): ...

class Norm:
    @cute.kernel
    def run(self, x): ...

@torch.jit.script
def scripted(x): ...

def nvjet_sm90(): ...
def Kernel2(): ...

class RMSNorm:
    def forward(self, x): return "nvjet_sm90_tst"
'''
CUDA = """
extern "C" __global__ void scale_rows(float* x) { not_mine(x); }
#if 0
__global__ void switched_off(float* x) {}
#endif
__global__ void after_it(float* x) {}
// __global__ void Kernel2(int x) {}
"""


def test_names_are_those_of_kernels_that_files_define(tmp_path: Path):
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "rms_norm.py").write_text(PYTHON)
    (tmp_path / "broken.py").write_text("def x(:")
    (tmp_path / "kernels.cu").write_text(CUDA)
    (tmp_path / "deep.py").write_text(f"x = {'-' * 100_000}1")
    (tmp_path / "marked.py").write_text("\ufeffimport triton\n@triton.jit\ndef _marked(): ...\n")
    for name in ("folder.py", "folder.cuh"):
        (tmp_path / name).mkdir()
        (tmp_path / f"link_{name}").symlink_to("nowhere")
    found = kernel_names([tmp_path])
    triton = {"_norm_rows", "_tuned", "_bare", "_gluon", "_wrapped", "_marked"}
    dsl = {"kernel_cutlass_dsl_*", "kernel_cutlass_run_*Norm_object_at_*"}
    assert found == triton | dsl | {"inline_norm", "other_one", "scale_rows", "after_it"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "begun",
    [
        "_",
        "__a",
        "__global__ ",
        "__global__ a",
        "a",
        "/* ",
        'R"(',
        '\\"',
        "\n#if 0",
        "__a__(",
        "__a__((",
        " ",
    ],
)
def test_what_begins_again_and_again_takes_no_longer(tmp_path: Path, begun: str):
    """Hours, if from every place the rest of the text was looked at."""
    for first in ("", '"', "__global__ a"):
        (tmp_path / "kernels.cu").write_text((first + begun * 2**20)[: 2**20])
        kernel_names([tmp_path])


def test_a_dead_function_makes_no_kernel_of_a_library_its_own(tmp_path: Path):
    """Not even under the right decorator."""
    (tmp_path / "mine.py").write_text(PYTHON + "@triton.jit\ndef Kernel2(): ...\n")
    names = kernel_names([tmp_path])
    assert "Kernel2" in names
    assert origin("void cutlass::Kernel2<cutlass_80_tensorop>(int)", names) == "vendor"
    assert origin("nvjet_sm90", names) == "vendor"


def test_kernels_of_the_cute_dsl(tmp_path: Path):
    (tmp_path / "mine.py").write_text(PYTHON)
    names = kernel_names([tmp_path])
    assert origin("kernel_cutlass_dsl_tensorptrf32gmemo16128_0", names) == "authored"
    assert origin("kernel_cutlass_run___mineNorm_object_at__tensorptrbf16_0", names) == "authored"
    assert origin("kernel_cutlass_run_flashinferTheirNorms_object_at__tensor_0", names) == "vendor"
    assert origin("kernel_cutlass_other_tensorptrf32_0", names) == "vendor"
