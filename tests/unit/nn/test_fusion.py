"""Parts become one kernel only where they are the baseline's own: in MLPs and in layers with layer norms."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastkernels import kernels
from fastkernels.loader.overlay import Overlay

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
    def forward(self, x_TD):
        return super().forward(x_TD) * 0
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
