"""Parts become one kernel only where they are the baseline's own: in MLPs, in layers with layer norms, in the
head, and in attention that rotates and stores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastkernels import kernels
from fastkernels.loader.overlay import Overlay
from fastkernels.nn.cache import allocate
from fastkernels.nn.context import use_step
from fastkernels.nn.fusion import apart
from tests.helpers import make_positions, make_step

CANDIDATES = {
    "L1/linear.py": """
import torch
from fastkernels.baseline.L1.linear import Linear as Baseline

class Linear(Baseline):
    def forward(self, x):
        return torch.zeros_like(super().forward(x))
""",
    "L1/activation.py": """
from torch import nn

class GELU(nn.Module):
    def __init__(self, approximate="none"):
        super().__init__()

    def forward(self, x):
        return x * 0
""",
    "L1/glu.py": """
from torch import nn

class SiluAndMul(nn.Module):
    def forward(self, x):
        return x[..., : x.shape[-1] // 2] * 0

class GeluAndMul(nn.Module):
    pass
""",
    "L2/parallel_linear.py": """
from fastkernels.baseline.L2 import parallel_linear as baseline

class ColumnParallelLinear(baseline.ColumnParallelLinear):
    def forward(self, x):
        return super().forward(x) * 0

class MergedColumnParallelLinear(baseline.MergedColumnParallelLinear):
    def forward(self, x):
        return super().forward(x) * 0
""",
}
# Module -> its fused kernel, and the file of the activation between its products.
KERNELS = {"mlp": "linear_activation", "gated_mlp": "linear_glu"}
ACTIVATIONS = {"mlp": "L1/activation.py", "gated_mlp": "L1/glu.py"}


def mlp(overlay: Overlay, name: str = "mlp") -> torch.nn.Module:
    if name == "gated_mlp":
        return filled(overlay.load("L2.gated_mlp").GatedMLP(8, 24))
    return filled(overlay.load("L2.mlp").MLP(8, 24, "gelu_tanh"))


def filled(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
    return module


@pytest.mark.parametrize("name", KERNELS)
def test_the_fused_kernel_is_what_the_parts_compute(name: str, monkeypatch) -> None:
    module, x = mlp(Overlay.over_baseline(), name), torch.randn(5, 8)
    called = []
    fused = getattr(kernels, KERNELS[name])
    monkeypatch.setattr(kernels, KERNELS[name], lambda *args: called.append(1) or fused(*args))
    y = module(x)
    assert called
    module.fuses = False
    torch.testing.assert_close(y, module(x))
    assert len(called) == 1


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (name, file)
        for name, own in ACTIVATIONS.items()
        for file in ("L1/linear.py", own, "L2/parallel_linear.py")
    ],
)
def test_a_candidate_in_the_place_of_a_part_runs(name: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(CANDIDATES[file])
    module, plain = mlp(Overlay.over_baseline([tmp_path]), name), mlp(Overlay.over_baseline(), name)
    x = torch.randn(5, 8)
    assert not torch.allclose(module(x), plain(x))


LAYERS = {
    "L3.vision_block": ("VisionBlock", (8, 24, 2, "gelu_tanh", 1e-6)),
    "L3.encoder_layer": ("EncoderLayer", (8, 24, 2)),
}
NORM = """
from fastkernels.baseline.L1.layer_norm import LayerNorm as Baseline

class LayerNorm(Baseline):
    def forward(self, x):
        return super().forward(x) * 0
"""


@pytest.mark.parametrize("name", LAYERS)
def test_a_sum_and_its_norm(name: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "layer_norm.py").write_text(NORM)
    cls, arguments = LAYERS[name]
    called = []
    fused = kernels.add_layer_norm
    monkeypatch.setattr(kernels, "add_layer_norm", lambda *args: called.append(1) or fused(*args))

    def made(overlay: Overlay) -> torch.nn.Module:
        return filled(getattr(overlay.load(name), cls)(*arguments))

    ours, theirs = made(Overlay.over_baseline()), made(Overlay.over_baseline([tmp_path]))
    args = torch.randn(5, 8), torch.tensor([0, 2, 5], dtype=torch.int32), 3
    y = ours(*args)
    assert len(called) == 1
    ours.fuses = False
    torch.testing.assert_close(y, ours(*args))
    assert not torch.allclose(y, theirs(*args))
    assert len(called) == 1


def test_a_branch_s_scale_its_sum_and_its_norm(monkeypatch) -> None:
    block = filled(Overlay.over_baseline().load("L3.vision_block").LayerScaleBlock(16, 24, 2, "silu", 1e-5))
    scales, ran = [], []
    fused = kernels.add_layer_norm
    monkeypatch.setattr(kernels, "add_layer_norm", lambda *args: scales.append(args[5]) or fused(*args))
    table = torch.randn(3, 8)
    args = (
        torch.randn(5, 16),
        table,
        torch.tensor([0, 1, 0, 1, 2]),
        torch.tensor([0, 2, 5], dtype=torch.int32),
        3,
    )
    y = block(*args)
    assert [scale is block.layer_scale1.lambda1 for scale in scales] == [True]
    with block.layer_scale1.register_forward_hook(lambda *_: ran.append(1)):
        torch.testing.assert_close(block(*args), y)
    assert ran == [1]
    assert len(scales) == 1


def head(overlay: Overlay) -> torch.nn.Module:
    return filled(overlay.load("L2.parallel_embedding").ParallelLMHead(24, 8)).to(torch.bfloat16)


def rounded(logits: torch.Tensor) -> bool:
    return torch.equal(logits, logits.bfloat16().float())


def test_logits_are_not_rounded(monkeypatch) -> None:
    module, hidden = head(Overlay.over_baseline()), torch.randn(5, 8).bfloat16()
    called = []
    fused = kernels.linear_float32
    monkeypatch.setattr(kernels, "linear_float32", lambda *args: called.append(1) or fused(*args))
    logits = module(hidden)
    assert called == [1]
    assert not rounded(logits)
    with apart(module):
        alone = module(hidden)
    assert called == [1]
    assert rounded(alone)
    torch.testing.assert_close(logits, alone, rtol=2**-8, atol=1e-6)


def test_a_candidate_in_the_head_runs(tmp_path: Path) -> None:
    (tmp_path / "L1").mkdir()
    (tmp_path / "L1" / "linear.py").write_text(CANDIDATES["L1/linear.py"])
    module = head(Overlay.over_baseline([tmp_path]))
    assert not module.fuses
    logits = module(torch.randn(5, 8).bfloat16())
    assert logits.dtype == torch.float32
    assert not logits.any()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_head_compiles_whole(backend: str) -> None:
    torch._dynamo.reset()
    module, hidden = head(Overlay.over_baseline()), torch.randn(5, 8).bfloat16()
    with torch.inference_mode():
        logits = torch.compile(module, fullgraph=True, backend=backend)(hidden)
        assert logits.dtype == torch.float32
        assert torch.equal(logits, module(hidden))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mlp", {"fc1.linear", "activation_fn", "fc2.linear"}),
        ("gated_mlp", {"gate_up_proj.linear", "act_fn", "down_proj.linear"}),
    ],
)
def test_who_walks_a_model_sees_every_part(name: str, parts: set[str]) -> None:
    module = mlp(Overlay.over_baseline(), name).to("meta")
    seen = []
    for path, part in module.named_modules():
        part.register_forward_hook(lambda *_, path=path: seen.append(path))
    module(torch.empty(5, 8, device="meta"))
    assert parts <= set(seen)


ATTENTION = {
    "L1/rope.py": """
from fastkernels.baseline.L1.rope import RotaryEmbedding as Baseline

class RotaryEmbedding(Baseline):
    def forward(self, positions, query, key):
        return query * 0, key
""",
    "L1/kv_cache.py": """
from torch import nn

class StoreKV(nn.Module):
    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        value_cache.view(-1, *value_cache.shape[2:])[slot_mapping] = value * 0
""",
    "L2/paged_attention.py": """
from fastkernels.baseline.L2.paged_attention import PagedAttention as Baseline

class PagedAttention(Baseline):
    def forward(self, query, key, value):
        return super().forward(query, key, value) * 0
""",
    "L1/prefill_attention.py": """
from fastkernels.baseline.L1.prefill_attention import PrefillAttention as Baseline

class PrefillAttention(Baseline):
    def forward(self, *args):
        return super().forward(*args) * 0
""",
}
BATCH = [1, 1, 6, 4], [9, 2, 6, 11]


def attention(overlay: Overlay, rotary: bool = True, **options) -> torch.nn.Module:
    """Grouped heads, a partial rotation, norms of heads unless told otherwise."""
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5} if rotary else None
    return filled(
        overlay.load("L2.causal_attention").CausalAttention(
            16, 4, 2, 8, 64, rope, **{"qk_norm_eps": 1e-6, **options}
        )
    )


def attended(module: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    """The output and both caches after one step."""
    pools = allocate(module, 40, 4, torch.float32, "cpu")
    hidden = torch.randn(sum(BATCH[0]), 16, generator=torch.Generator().manual_seed(1))
    with use_step(make_step(*BATCH, 4, 40, torch.Generator().manual_seed(0))), torch.inference_mode():
        return module(make_positions(*BATCH), hidden), *pools.values()


@pytest.fixture
def fused_calls(monkeypatch) -> list[int]:
    called, fused = [], kernels.rope_store_kv
    monkeypatch.setattr(kernels, "rope_store_kv", lambda *args: called.append(1) or fused(*args))
    return called


@pytest.mark.parametrize("options", [{}, {"qk_norm_eps": None, "qkv_bias": True, "sliding_window": 5}])
def test_rotating_and_storing(options: dict, fused_calls: list[int]) -> None:
    module = attention(Overlay.over_baseline(), **options)
    found = attended(module)
    assert len(fused_calls) == 1
    with apart(module):
        assert not module.fuses
        wanted = attended(module)
    assert module.fuses
    assert len(fused_calls) == 1
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("file", ATTENTION)
def test_a_candidate_in_attention_runs(file: str, tmp_path: Path, fused_calls: list[int]) -> None:
    """What attends is no part of the kernel: beside a candidate for it, rotating and storing stay one."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(ATTENTION[file])
    theirs = attended(attention(Overlay.over_baseline([tmp_path])))
    assert len(fused_calls) == (file == "L1/prefill_attention.py")
    ours = attended(attention(Overlay.over_baseline()))
    assert not torch.allclose(ours[0], theirs[0])


def test_attention_without_rotation_stores_by_itself(fused_calls: list[int]) -> None:
    module = attention(Overlay.over_baseline(), rotary=False)
    attended(module)
    assert not fused_calls


def test_apart_leaves_other_attributes_of_the_name_alone() -> None:
    module = torch.nn.Linear(2, 2)
    module.fuses = 3
    with apart(module):
        assert module.fuses == 3
