"""A small RMSNorm trial without the package's kernels: inputs, a bfloat16 or float32 baseline, the float64
oracle."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

T, D, EPS = 67, 96, 1e-5


@dataclass
class Trial:
    x_TD: Tensor
    weight_D: Tensor

    @property
    def oracle(self) -> dict[str, Tensor]:
        return {"out.0": norm(self.x_TD.double(), self.weight_D.double())}

    @property
    def baseline(self) -> dict[str, Tensor]:
        wide = norm(self.x_TD.float(), torch.ones(D)).to(self.x_TD.dtype)
        return {"out.0": wide * self.weight_D}


def norm(x_TD: Tensor, weight_D: Tensor, eps: float = EPS) -> Tensor:
    return x_TD * torch.rsqrt(x_TD.square().mean(-1, keepdim=True) + eps) * weight_D


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def trial(request: pytest.FixtureRequest) -> Trial:
    generator = torch.Generator().manual_seed(7)
    x_TD = torch.randn(T, D, generator=generator)
    weight_D = torch.rand(D, generator=generator) + 0.5
    return Trial(x_TD.to(request.param), weight_D.to(request.param))
