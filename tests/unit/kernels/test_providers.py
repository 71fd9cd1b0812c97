"""Production libraries as implementations: what they are given, what they decline, and that they cost nothing
until they are called. Their packages are fakes that compute by definition; tests/gpu has the real ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fastkernels import kernels
from fastkernels.cli import diagnosis
from fastkernels.errors import KernelError
from fastkernels.kernels import registered
from fastkernels.kernels.choice import Implementation, installed
from fastkernels.kernels.providers import flash_attention, flashmla, vllm_attention, vllm_operator, vllm_rows
from fastkernels.layout import install_line
from tests import provider_fakes as fakes
from tests.attention_case import AttentionCase, attention_case
from tests.encoder_cases import dense_case
from tests.gla_case import worst
from tests.mla_case import TOLERANCE, make

BF16 = torch.bfloat16
PREFILL = {
    "chunks": {"query_lens": [3, 1, 20], "seq_lens": [40, 17, 20]},
    "rows-without-queries": {"query_lens": [0, 7, 0], "seq_lens": [9, 30, 4]},
    "window": {"query_lens": [20, 3], "seq_lens": [20, 60], "window": 7},
    "window-of-one": {"query_lens": [5, 1], "seq_lens": [5, 18], "window": 1},
}
DECODE = {
    "mixed": {"seq_lens": [1, 16, 40]},
    "padding-rows": {"seq_lens": [5, 0, 30, 0]},
    "window": {"seq_lens": [3, 40, 60], "window": 33},
}
SINKS = {"sinks": True, "window": 9}
PACKAGES = {
    "flash_attn_3": (
        "flash_attn_interface.py",
        "flash_attn_with_kvcache, fa3_varlen as flash_attn_varlen_func",
    ),
    "flash_attn_4": ("flash_attn/cute/__init__.py", "fa4_varlen as flash_attn_varlen_func"),
}


@pytest.fixture(autouse=True)
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


@pytest.fixture
def vllm() -> Iterator[None]:
    """Its operators, registered as its compiled files would."""
    operators = [vllm_attention._FORWARD, flashmla._FORWARD, *vllm_rows._OPERATORS.values()]
    with torch.library._scoped_library("_vllm_fa3_C", "DEF") as attention, \
         torch.library._scoped_library("_C", "DEF") as rows:  # fmt: skip
        attention.define(fakes.FA3)
        attention.impl("fwd", fakes.fa3_forward, "CPU")
        rows.define("rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()")
        rows.impl("rms_norm", fakes.rms_norm, "CPU")
        rows.define(
            "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()"
        )
        rows.impl("fused_add_rms_norm", fakes.fused_add_rms_norm, "CPU")
        rows.define("silu_and_mul(Tensor! out, Tensor input) -> ()")  # its first argument was `result`
        yield
    for operator in operators:
        vars(operator).pop("missing", None)
        vars(operator).pop("call", None)


@pytest.fixture
def provider(
    request: pytest.FixtureRequest, vllm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """The file of a provider, over a package on sys.path that has the functions that it asks for."""
    if request.param == "vllm":
        return vllm_attention
    file, functions = PACKAGES[request.param]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(f"from tests.provider_fakes import {functions}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    name = f"{kernels.__name__}.providers.{request.param}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


every = pytest.mark.parametrize("provider", ["vllm", *PACKAGES], indirect=True)


def ask(module: ModuleType, kernel: str, args: tuple) -> torch.Tensor:
    args = tuple(0 if a is None and n > 4 else a for n, a in enumerate(args))  # no window is 0 below
    assert module.unsupported(kernel, *args) is None
    return getattr(module, kernel)(*args)


def refused(module: ModuleType, kernel: str, case: AttentionCase) -> str | None:
    args = case.decode_args if kernel == "decode_attention" else case.prefill_args
    return module.unsupported(kernel, *args)


@every
@pytest.mark.parametrize("name", PREFILL)
def test_prefill(provider: ModuleType, name: str) -> None:
    case = attention_case(dtype=BF16, **PREFILL[name])
    case.check(ask(provider, "prefill_attention", case.prefill_args))


@every
@pytest.mark.parametrize("name", DECODE)
def test_decode(provider: ModuleType, name: str) -> None:
    case = attention_case([1] * len(DECODE[name]["seq_lens"]), dtype=BF16, **DECODE[name])
    case.check(ask(provider, "decode_attention", case.decode_args))


@every
def test_rows_behind_others(provider: ModuleType) -> None:
    """A step's prefills follow its decodes: their starts are counted from the first prefill's."""
    case = attention_case([3, 20], [40, 20], dtype=BF16)
    args = list(case.prefill_args)
    args[3] = args[3] + 5
    case.check(ask(provider, "prefill_attention", tuple(args)))


@every
def test_sinks(provider: ModuleType) -> None:
    case = attention_case([3, 20], [40, 20], dtype=BF16, **SINKS)
    if provider.__name__.endswith("flash_attn_3"):
        assert refused(provider, "prefill_attention", case) == "has no attention sinks"
        return
    case.check(ask(provider, "prefill_attention", case.prefill_args))
    case = attention_case([1, 1, 1], [40, 3, 20], dtype=BF16, **SINKS)
    case.check(ask(provider, "decode_attention", case.decode_args))


@every
@pytest.mark.parametrize("causal", [False, True])
def test_packed_rows(provider: ModuleType, causal: bool) -> None:
    case = dense_case([5, 1, 30], [5, 1, 30] if causal else [9, 3, 30], dtype=BF16, causal=causal)
    assert provider.unsupported("dense_attention", *case.args) is None
    case.check(provider.dense_attention(*case.args))


@every
def test_no_queries(provider: ModuleType) -> None:
    case = attention_case([1], [9], dtype=BF16)
    args = list(case.decode_args)
    args[0], args[3] = args[0][:0], args[3][:0]
    assert ask(provider, "decode_attention", tuple(args)).shape == (0, *case.query_THK.shape[1:])


@every
@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"block_size": 64}, "serves blocks of fewer than 64 tokens, not 64"),
        ({"head_dim": 264}, "serves head dimensions up to 256 that"),
        ({"head_dim": 20}, "divides, not 20"),
        ({"dtype": torch.float32}, "serves float16 and bfloat16, not float32"),
    ],
)
def test_limits(provider: ModuleType, facts: dict, says: str) -> None:
    case = attention_case([1, 1], [3, 9], **{"dtype": BF16, **facts})
    for kernel in ("prefill_attention", "decode_attention"):
        assert says in (refused(provider, kernel, case) or "")


@every
def test_other_limits(provider: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    biased = dense_case([3], [3], dtype=BF16, biased=True)
    assert provider.unsupported("dense_attention", *biased.args) == "serves no bias"
    case = attention_case([1], [3], dtype=BF16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (10, 0))
    assert refused(provider, "decode_attention", case) == "needs compute capability 9"


@pytest.mark.parametrize(
    ("heads", "dtype", "says"),
    [
        ((80, 8), BF16, "serves sinks of up to 64 heads, not 80"),
        ((4, 2), torch.float16, "serves sinks where they and the queries are bfloat16"),
    ],
)
def test_sinks_that_vllm_declines(vllm: None, heads: tuple, dtype: torch.dtype, says: str) -> None:
    case = attention_case([1], [3], heads, dtype=dtype, sinks=True)
    assert refused(vllm_attention, "decode_attention", case) == says


@pytest.mark.parametrize("is_decode", [False, True])
def test_latents(vllm: None, is_decode: bool) -> None:
    """The first part of an entry is its value; what the queries say of it is a tensor of its own."""
    rows = [(1, 20), (1, 3), (1, 40)] if is_decode else [(5, 20), (1, 3), (16, 16)]
    case = make(rows, heads=2, latent=256, rest=64, dtype=BF16)
    longest = (40,) if is_decode else (16, 20)
    starts = () if is_decode else (case.query_starts_B1,)
    args = (
        case.q_THC,
        case.cache_NPC,
        *starts,
        case.seq_lens_B,
        case.block_tables_BM,
        case.scale,
        256,
        *longest,
    )
    kernel = "mla_decode" if is_decode else "mla_prefill"
    o_THL = ask(vllm_attention, kernel, args)
    assert worst(o_THL, case.answer()) <= TOLERANCE[BF16]
    small = (*args[: -len(longest) - 1], 128, *longest)
    says = "serves 256 or 512 latent features, not 128"
    assert vllm_attention.unsupported(kernel, *small) == says


def test_flashmla_declines_other_blocks() -> None:
    case = make([(1, 20)], heads=2, latent=512, rest=64, dtype=BF16)
    args = (case.q_THC, case.cache_NPC, case.seq_lens_B, case.block_tables_BM, case.scale, 512, 20)
    assert flashmla.unsupported("mla_decode", *args) == "serves blocks of 64 tokens, not 16"
    args = (case.q_THC[..., :72].contiguous(), case.cache_NPC[..., :72], *args[2:5], 64, 20)
    says = "serves 576 features of which 512 are latent, not 72 and 64"
    assert flashmla.unsupported("mla_decode", *args) == says


def test_norms(vllm: None) -> None:
    """Heads of a packed projection; and neither argument of the sum is written."""
    packed = torch.randn(5, 6, 16).to(BF16)
    x, weight = packed[:, 2:4], torch.rand(16).to(BF16) + 0.5
    for w in (weight, None):
        expected = kernels.rms_norm(x.double(), None if w is None else w.double(), 1e-6, impl="reference")
        assert vllm_rows.unsupported("rms_norm", x, w, 1e-6) is None
        torch.testing.assert_close(vllm_rows.rms_norm(x, w, 1e-6).double(), expected, rtol=2**-8, atol=1e-6)
    x, residual = packed.flatten(1)[:, 16:32], torch.randn(5, 16).to(BF16)
    before = x.clone(), residual.clone()
    assert vllm_rows.unsupported("add_rms_norm", x, residual, weight, 1e-6) is None
    y, total = vllm_rows.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(
        y, kernels.rms_norm(total, weight, 1e-6, impl="reference"), rtol=2**-7, atol=1e-6
    )
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
    assert vllm_rows.unsupported("rms_norm", x, weight, 1e-6, True) == "has no weight of 1 + w"
    assert vllm_rows.unsupported("add_rms_norm", x, residual.float(), weight, 1e-6) is not None


def test_another_version_of_vllm_is_declined(
    vllm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, 32).to(BF16)
    says = "vLLM's silu_and_mul takes other arguments than in version 0.26: out, input"
    assert vllm_rows.unsupported("glu", x, "silu") == says
    assert vllm_rows.unsupported("glu", x, "relu2") == "has no relu2"
    assert "_C_stable_libtorch.abi3.so has no gelu_and_mul" not in says
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise AssertionError('vLLM was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    absent = vllm_operator.Operator("_flashmla_C", "dense_decode_fwd", "q")
    assert "vLLM's _flashmla_C.abi3.so cannot be loaded" in (absent.missing or "")


def test_a_package_that_is_here_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a folder that only holds FlashAttention-4 is no FlashAttention-2."""
    for file in ("vllm/__init__.py", "flash_attn_interface.py", "flash_attn/cute/__init__.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    assert [installed(name) for name in ("vllm", "flash_attn_interface", "flash_attn.cute")] == [True] * 3
    assert not installed("flash_attn")
    assert not installed("flash_attn.other")
    assert not installed("no_such_package.part")
    for name in ("vllm", "flash_attn_3"):
        known = registered["decode_attention"].implementation(name)
        fresh = Implementation(known.name, known.source, known.devices, known.requires, known.extra)
        assert fresh.missing is None
    x = torch.randn(4, 32)
    assert kernels.glu(x, "silu").shape == (4, 16)
    with pytest.raises(KernelError, match="vllm: needs cuda, not cpu"):
        kernels.glu(x, "silu", impl="vllm")
    libraries = {library.name: library for library in diagnosis.libraries()}
    assert libraries["vllm"].version
    assert "decode_attention" in libraries["vllm"].kernels
    assert "--extra-index-url https://download.pytorch.org" in install_line("flash-attn-3")


def test_no_table_or_order_prefers_what_was_not_measured() -> None:
    """Behind every implementation that was there before, so that nothing changes where they are installed."""
    new = {"vllm", "flash_attn_3", "flash_attn_4", "flashmla", "sgl_kernel", "deep_gemm", "quack", "liger"}
    around_attention = "fastkernels.kernels.providers.fla"
    for kernel in registered.values():
        is_new = [i.name in new or i.source == around_attention for i in kernel.implementations]
        assert is_new == sorted(is_new), kernel.name


def test_head_dimensions_of_flash_attention_4(vllm: None) -> None:
    case = attention_case([1], [3], head_dim=24, dtype=BF16)
    assert flash_attention.unsupported("decode_attention", *case.decode_args) is None
    says = "serves head dimensions up to 256 that 16 divides, not 24"
    assert flash_attention.unsupported("decode_attention", *case.decode_args, divisor=16) == says
