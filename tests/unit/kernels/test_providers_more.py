"""Kernels of production libraries where there is no GPU: Triton's interpreted, others by what they are told.

SGLang, DeepGEMM, QuACK, Liger and flash-linear-attention; test_providers.py has the others.
"""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fastkernels import kernels
from fastkernels.kernels import choice, registered
from fastkernels.kernels.policy import interpreting
from tests import diffusion_cases as diffusion
from tests import mamba_cases as mamba
from tests import moe_cases as moe
from tests import pointwise_cases as cases
from tests import retrieval_cases as retrieval
from tests.pointwise_cases import KernelCase, check
from tests.provider_cases import untuned
from tests.unit.kernels.implementations import TRITON_DTYPE

ROWS = [(5, 33), (3, 600)]
CASES = [
    *cases.rms_norm_cases(ROWS),
    *cases.add_rms_norm_cases(ROWS),
    *cases.layer_norm_cases(ROWS),
    *cases.add_layer_norm_cases(ROWS),
    *cases.gated_rms_norm_cases(ROWS),
    *cases.softmax_cases(ROWS),
    *cases.glu_cases([(3, 33)]),
    *(case for case in cases.activation_cases([(3, 33)]) if case.name.startswith(("relu2", "si"))),
    *cases.rope_cases([(5, 3, 1, 80, 20), (7, 4, 2, 16, 16)]),
    *retrieval.l2_norm_cases(),
    *retrieval.sum_layer_norm_cases(),
    *diffusion.rope_pairs_cases([(2, 7, 3, 40)]),
]
IN_TRITON = {"liger": "liger_kernel", "fla": "fla"}
SERVED = [
    (case, impl) for case in CASES for impl in IN_TRITON if registered[case.kernel].implementation(impl)
]


class Number(float):
    """What Triton makes of a float where it compiles: the interpreter leaves it without this method."""

    def to(self, dtype: object) -> "Number":
        return self


@pytest.fixture(scope="module")
def in_triton():
    """Libraries in Triton serve a CPU. What the interpreter lacks is supplied: a float's conversion,
    libdevice, a choice among configurations without a GPU to time them."""
    if not interpreting():
        pytest.skip("runs in test_interpreted.py")
    import triton.language as tl

    with untuned(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "IN_TRITON", (*choice.IN_TRITON, *IN_TRITON))
        if find_spec("liger_kernel"):
            from liger_kernel.ops import fused_add_rms_norm, geglu, layer_norm, rms_norm, swiglu

            from fastkernels.kernels.providers import liger

            for module in (fused_add_rms_norm, layer_norm, rms_norm):
                patch.setattr(module, "rsqrt", lambda x: tl.rsqrt(x))
            patch.setattr(geglu, "tanh", lambda x: 2 * tl.sigmoid(2 * x) - 1)
            patch.setattr(swiglu, "float", Number, raising=False)
            for name in ("rms_norm_forward", "fused_add_rms_norm_forward", "layer_norm_forward"):
                launch = getattr(liger, name)
                patch.setattr(
                    liger,
                    name,
                    lambda *args, launch=launch: launch(
                        *(Number(a) if type(a) is float else a for a in args)
                    ),
                )
        yield


@pytest.mark.parametrize("dtype", [torch.float32, TRITON_DTYPE], ids=str)
@pytest.mark.parametrize(("case", "impl"), SERVED, ids=str)
def test_triton_libraries_against_the_formula(
    case: KernelCase, impl: str, dtype: torch.dtype, in_triton
) -> None:
    pytest.importorskip(IN_TRITON[impl])
    if reason := registered[case.kernel].why_not(impl, case.make(dtype)):
        pytest.skip(reason)
    check(case, dtype, impl)


@pytest.mark.parametrize("dtype", [torch.float32, TRITON_DTYPE], ids=str)
@pytest.mark.parametrize("lens", [(5, 1, 70), (1, 1)], ids=str)
def test_triton_convolutions_keep_their_inputs(lens: tuple[int, ...], dtype: torch.dtype, in_triton) -> None:
    """States hold what tokens of this dtype were; some requests are shorter than the kernel."""
    pytest.importorskip("fla")
    case = mamba.conv(lens, dtype=dtype)
    case = mamba.StateCase(
        case.kernels,
        case.tokens,
        case.others,
        case.state.to(dtype).float(),
        case.rows_B,
        case.query_starts_B1,
    )
    for is_update in (False, True) if set(lens) == {1} else (False,):
        mamba.check(case, "fla", is_update)
    assert registered["causal_conv1d"].why_not("fla", case.arguments(False, case.state.double()))


def test_triton_kernels_that_are_not_used_lose_what_docs_libraries_says(in_triton) -> None:
    """Where this fails, a library has mended its kernel, which can be used then."""
    pytest.importorskip("fla")
    from fla.modules.activations import logsigmoid

    (near_zero,) = (c for c in cases.activation_cases([]) if c.name == "log_sigmoid-close-to-zero")
    x, name, divisor = near_zero.make(torch.float32)
    (exact,) = near_zero.answer(x, name, divisor)
    assert cases.worst_row_error(logsigmoid(x, divisor), exact) > 1e-5

    pytest.importorskip("liger_kernel")
    import triton.language as tl
    from liger_kernel.ops import group_norm

    (large_mean,) = (c for c in diffusion.group_norm_cases([]) if c.name == "large-mean")
    x, weight, bias, groups, eps, _ = given = large_mean.make(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_norm, "rsqrt", lambda x: tl.rsqrt(x))
        first = x.permute(0, 3, 1, 2).contiguous()
        y, *_ = group_norm.group_norm_forward(first, x.shape[-1], groups, weight, bias, Number(eps))
    (exact,) = large_mean.answer(*given)
    assert cases.worst_row_error(y.permute(0, 2, 3, 1), exact) > 1e-5


# Compiled libraries: fakes with the interfaces of theirs, that compute with PyTorch. ----------------------


@pytest.fixture
def fake(monkeypatch):
    """fake(provider, **modules): the provider's module, imported anew where these stand for its library."""

    def put(provider: str, **modules: dict) -> ModuleType:
        for name, contents in modules.items():
            path = name.replace("__", ".")
            module = ModuleType(path)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, path, module)
        name = f"fastkernels.kernels.providers.{provider}"
        monkeypatch.delitem(sys.modules, name, raising=False)
        __import__(name)
        return monkeypatch.setitem(sys.modules, name, sys.modules[name]) or sys.modules[name]

    return put


def close(got: object, expected: object) -> None:
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def agrees(module: ModuleType, kernel: str, *args: object) -> None:
    """With the reference, in a call that the module does not decline."""
    assert module.unsupported(kernel, *args) is None
    close(getattr(module, kernel)(*args), registered[kernel](*args, impl="reference"))


@pytest.fixture
def sgl_operators():
    """SGLang's operators with the schemas of sglang-kernel 0.4."""
    library = torch.library.Library("sgl_kernel", "DEF")

    def define(schema: str, compute) -> None:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, compute, "CompositeExplicitAutograd")

    def norm(plus_one: bool):
        def write(out, x, weight, eps, enable_pdl):
            assert x.ndim == out.ndim == 2
            out.copy_(kernels.rms_norm(x, weight, eps, plus_one, impl="reference"))

        return write

    def gate(activation):
        def write(out, x):
            out.copy_(kernels.glu(x, activation, impl="reference"))

        return write

    def route(weights, ids, logits, renormalize, cap, bias):
        assert (cap, bias) == (0.0, None)
        for written, x in zip((weights, ids), kernels.topk_softmax(logits, 2, renormalize, impl="reference")):
            written.copy_(x)

    def add_up(x, out, factor):
        out.copy_(x.float().sum(1) * factor)

    def rotate(positions, query, key, head_size, table, is_neox):
        assert is_neox
        assert head_size == query.shape[-1]
        for x, y in zip((query, key), kernels.rope(positions, query, key, table, impl="reference")):
            x.copy_(y)

    arguments = "(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()"
    define(f"rmsnorm{arguments}", norm(False))
    define(f"gemma_rmsnorm{arguments}", norm(True))
    for activation in ("silu", "gelu", "gelu_tanh"):
        define(f"{activation}_and_mul(Tensor! out, Tensor input) -> ()", gate(activation))
    define(
        "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, "
        "Tensor cos_sin_cache, bool is_neox) -> ()",
        rotate,
    )
    define(
        "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor gating_output, bool renormalize, "
        "float moe_softcapping, Tensor? correction_bias) -> ()",
        route,
    )
    define(
        "moe_sum_reduce(Tensor input, Tensor output, float routed_scaling_factor) -> ()",
        add_up,
    )
    yield
    library._destroy()


def test_what_sglangs_operators_are_told(fake, sgl_operators, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    sgl = fake("sgl_kernel", sgl_kernel={})
    x, weight = torch.randn(6, 32).bfloat16(), torch.rand(16).bfloat16()
    agrees(sgl, "rms_norm", x[:, 8:24], weight, 1e-6)
    agrees(sgl, "rms_norm", x.view(2, 3, 2, 16), weight, 1e-6, True)
    agrees(sgl, "glu", x, "gelu")
    agrees(sgl, "moe_sum", x.view(3, 2, 32))
    agrees(sgl, "topk_softmax", x, 2, True, 1.0, None)
    q, k = torch.randn(5, 4, 8), torch.randn(5, 2, 8)
    before = q.clone()
    agrees(sgl, "rope", torch.arange(5), q, k, torch.randn(9, 6))
    assert torch.equal(q, before), "an argument was written"
    for kernel, args, reason in [
        ("rms_norm", (x.float(), weight.float(), 1e-6), "serves float16 and bfloat16, not float32"),
        ("rms_norm", (x, None, 1e-6), "multiplies by a weight"),
        ("rms_norm", (x.view(6, 2, 16)[:, :1], weight, 1e-6), "contiguous rows at one distance"),
        ("glu", (x, "relu2"), "not relu2"),
        ("glu", (x[:, :24].contiguous(), "silu"), "halves of a multiple of 16 bytes"),
        ("moe_sum", (x[:, :24].view(3, 2, 24),), "adds blocks of 16 features"),
        ("topk_softmax", (x, 2, True, 0.5), "scales neither logits nor experts"),
        ("topk_softmax", (x, 2, True, 1.0, weight), "scales neither logits nor experts"),
        ("rope", (torch.arange(5), q.half(), k.half(), torch.randn(9, 6)), "serves float32 alone"),
        ("rope", (torch.arange(5).int(), q, k, torch.randn(9, 6)), "positions of 64 bits"),
    ]:
        assert reason in (sgl.unsupported(kernel, *args) or ""), (kernel, reason)


@pytest.mark.parametrize("kernel", ["prefill_attention", "decode_attention"])
def test_what_sglangs_attention_is_told(kernel: str, fake, monkeypatch) -> None:
    from tests.attention_case import attention_case

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    lens = [1, 1, 1] if kernel == "decode_attention" else [5, 1, 30]
    case = attention_case(
        lens, [40, 1, 30], heads=(4, 2), head_dim=16, dtype=torch.bfloat16, device="cpu", window=9, sinks=True
    )

    def attend(q, k_cache, v_cache, *, cache_seqlens, page_table, softmax_scale, causal, window_size, sinks,
               cu_seqlens_q=None, max_seqlen_q=None):  # fmt: skip
        assert causal
        assert window_size[1] == 0
        batch = len(cache_seqlens)
        starts = torch.arange(batch + 1, dtype=torch.int32) if cu_seqlens_q is None else cu_seqlens_q
        assert starts[0] == 0
        o = kernels.prefill_attention(
            q.flatten(0, -3), k_cache, v_cache, starts, cache_seqlens, page_table, softmax_scale,
            window_size[0] + 1, max_seqlen_q or 1, 40, sinks, impl="reference",
        )  # fmt: skip
        return o.view(q.shape)

    attention = {"flash_attn_with_kvcache": attend, "flash_attn_varlen_func": None}
    module = fake("sgl_attention", sgl_kernel={}, sgl_kernel__flash_attn=attention)
    args = case.decode_args if kernel == "decode_attention" else case.prefill_args
    args = [a.bfloat16() if a is args[-1] else a for a in args]  # sinks
    assert module.unsupported(kernel, *args) is None
    case.check(getattr(module, kernel)(*args))
    assert "bfloat16" in module.unsupported(kernel, *args[:-1], args[-1].float())


def grouped_by_tiles(a_MK, b_ENK, d_MN, expert_M) -> None:
    """DeepGEMM's contract: rows of a tile share the expert of the tile's first row, or are nobody's."""
    assert len(a_MK) % TILE == 0
    for start in range(0, len(a_MK), TILE):
        (experts,) = {frozenset(expert_M[start : start + TILE].tolist()) - {-1}}
        assert len(experts) <= 1
        first = expert_M[start].item()
        assert not experts or experts == {first}, "a tile whose first row is nobody's is skipped"
        d_MN[start : start + TILE] = a_MK[start : start + TILE] @ b_ENK[first].T if first >= 0 else torch.nan


TILE = 128


@pytest.fixture
def deep_gemm(fake, monkeypatch) -> ModuleType:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    library = {
        "__spec__": SimpleNamespace(name="deep_gemm", submodule_search_locations=[]),
        "bf16_gemm_nt": lambda a, b, d: d.copy_(a @ b.T),
        "m_grouped_bf16_gemm_nt_contiguous": grouped_by_tiles,
        "get_m_alignment_for_contiguous_layout": lambda: TILE,
    }
    return fake("deep_gemm", deep_gemm=library)


@pytest.mark.parametrize(("is_shared", "is_weighted"), [(True, False), (False, True)])
@pytest.mark.parametrize("shape", moe.SHAPES, ids=str)
def test_deep_gemms_rows_begin_at_tiles(
    shape: moe.Shape, is_shared: bool, is_weighted: bool, deep_gemm: ModuleType
) -> None:
    shape = replace(shape, inputs=64)
    args = moe.grouped_arguments(shape, torch.bfloat16, is_shared, is_weighted)
    x, weight, order, starts, weights = args
    if shape.outputs % 8:
        reason = deep_gemm.unsupported("grouped_linear", *args)
        assert reason == "needs output rows of a multiple of 16 bytes"
        return
    assert deep_gemm.unsupported("grouped_linear", *args) is None
    y_SN = deep_gemm.grouped_linear(*args)
    close(y_SN.double(), moe.grouped_answer(shape, x, weight, weights))
    if is_shared:
        agrees(deep_gemm, "grouped_linear_glu", x, weight, order, starts, "silu")
    narrow = x[:, :40].contiguous(), weight[..., :40].contiguous()
    assert deep_gemm.unsupported("grouped_linear", *narrow, *args[2:]) == "needs a multiple of 64 inputs"


def test_the_deep_gemm_inside_vllm(monkeypatch, tmp_path: Path) -> None:
    """It is imported without vLLM, and its complaint about a missing toolkit is a reason to decline."""
    package = tmp_path / "vllm" / "third_party" / "deep_gemm"
    package.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('vLLM was imported')")
    (package.parent / "__init__.py").touch()
    (package / "utils.py").write_text("TILE = 64")
    (package / "__init__.py").write_text("from .utils import TILE\nassert False, 'no toolkit'")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("DG_JIT_USE_NVRTC", "0")
    name = "fastkernels.kernels.providers.deep_gemm"
    known = registered["linear"].implementation("deep_gemm")
    implementation = choice.Implementation(known.name, known.source, known.devices, known.requires)
    assert choice.installed(*implementation.requires)
    for module in (name, "deep_gemm", "deep_gemm.utils"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert "needs a CUDA toolkit: set CUDA_HOME (AssertionError('no toolkit'))" in implementation.limits(
        "linear"
    )(None, None)
    assert "deep_gemm" not in sys.modules
    (package / "__init__.py").write_text("from .utils import TILE\n")
    __import__(name)
    assert sys.modules[name].library.TILE == 64
    for module in (name, "deep_gemm", "deep_gemm.utils"):
        sys.modules.pop(module, None)


def test_deep_gemms_linear(deep_gemm: ModuleType) -> None:
    x, weight = torch.randn(2, 3, 40).bfloat16(), torch.randn(24, 40).bfloat16()
    agrees(deep_gemm, "linear", x, weight, None)
    agrees(deep_gemm, "linear", x[0, :, :32], weight[:, :32].contiguous(), None)
    for args, reason in [
        ((x, weight, weight[:, 0]), "adds no bias"),
        ((x.half(), weight.half(), None), "serves bfloat16, not float16"),
        ((x[..., :33], weight[:, :33].contiguous(), None), "contiguous rows at one distance"),
        ((x, weight[:, :32], None), "contiguous weight"),
    ]:
        assert reason in (deep_gemm.unsupported("linear", *args) or ""), reason


def test_what_quack_is_told(fake) -> None:
    def rmsnorm_fwd(x, weight=None, *, residual=None, eps, weight_offset=0.0):
        assert x.ndim == 2
        total = x if residual is None else x + residual
        y = kernels.rms_norm(total, weight, eps, weight_offset == 1, impl="reference")
        return y, total, None

    def layernorm_fwd(x, weight, bias, eps):
        assert x.ndim == 2
        assert weight.dtype == bias.dtype == torch.float32
        return torch.nn.functional.layer_norm(x.float(), weight.shape, weight, bias, eps).to(x.dtype)

    def apply_rotary(x, cos, sin, interleaved):
        table, positions = torch.cat((cos, sin), -1), torch.arange(x.shape[1])
        if interleaved:
            return kernels.rope_pairs(x, x, table, impl="reference")[0]
        return kernels.rope(positions, x[0], x[0], table, impl="reference")[0][None]

    def gemm(a, b, *, bias, tuned):
        assert not tuned
        return torch.nn.functional.linear(a, b.T, bias)

    quack = fake(
        "quack",
        quack={},
        quack__gemm_interface={"gemm": gemm},
        quack__rmsnorm={"rmsnorm_fwd": rmsnorm_fwd, "layernorm_fwd": layernorm_fwd},
        quack__rotary={"apply_rotary": apply_rotary},
        quack__softmax={"softmax_fwd": lambda x: torch.softmax(x, -1)},
    )
    x, w = torch.randn(2, 3, 16).bfloat16(), torch.randn(32, 16).bfloat16()
    bias, scale = torch.randn(32).bfloat16(), torch.rand(16).bfloat16()
    agrees(quack, "rms_norm", x, scale, 1e-6, True)
    agrees(quack, "rms_norm", x, None, 1e-6, True)
    agrees(quack, "add_rms_norm", x.float(), x.float(), scale.float(), 1e-6)
    agrees(quack, "layer_norm", x, scale, bias[:16], 1e-6)
    agrees(quack, "softmax", x)
    agrees(quack, "linear", x, w, bias)
    q, k = torch.randn(5, 4, 16), torch.randn(5, 2, 16)
    agrees(quack, "rope", torch.tensor([3, 0, 8, 1, 1]), q.half(), k.half(), torch.randn(9, 8))
    agrees(quack, "rope_pairs", q[None], q[None], torch.randn(5, 16))
    for kernel, args, reason in [
        ("add_rms_norm", (x, x, scale, 1e-6), "before it is rounded"),
        ("linear", (x.float(), w.float(), None), "serves float16 and bfloat16, not float32"),
        ("linear", (x, w[:12], None), "output rows of a multiple of 16 bytes"),
        ("softmax", (x[..., :9].contiguous(),), "rows of a multiple of 16 bytes"),
        ("softmax", (x[:, :2].transpose(0, 1),), "contiguous rows at one distance"),
    ]:
        assert reason in (quack.unsupported(kernel, *args) or ""), (kernel, reason)


def test_a_library_that_cannot_be_imported_declines(monkeypatch) -> None:
    """As one that was built for another PyTorch; a fault of our own still shows."""
    path = "fastkernels.kernels.providers.sgl_kernel"
    monkeypatch.delitem(sys.modules, path, raising=False)
    monkeypatch.setitem(sys.modules, "sgl_kernel", None)
    implementation = choice.Implementation("sgl_kernel", path, ("cpu",), requires=("torch",))
    assert implementation.function("glu") is None
    reason = implementation.why_not("glu", (torch.zeros(2, 2), "silu"), "cpu")
    assert reason.startswith("torch cannot be imported: ")
    with pytest.raises(ImportError):
        choice.Implementation("sgl_kernel", path, ("cpu",)).limits("glu")


def test_one_library_or_another() -> None:
    assert choice.installed("no_such_package or torch.nn")
    assert not choice.installed("no_such_package or torch.no_such_module")
