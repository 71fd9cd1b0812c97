"""A cloud of points to features, whatever the order of its points; with it, the state of a robot.

    default        p(x) = layer_norm(max_n h_3(h_2(h_1(x[n]))) W^T + b),    h(z) = relu(layer_norm(z W^T + b))
    observation    y = [p(x) | mlp(s)]                                      mlp: relu between its layers alone

B observations, N points of C coordinates, S numbers of a state s, E features of a cloud. Rounded to the dtype
of x after each product, norm and activation.
Mirrors diffusion_policy_3d.model.vision.pointnet_extractor.PointNetEncoderXYZ with use_layernorm=True and
final_norm="layernorm", diffusion_policy_3d.model.vision.pointnet_extractor.DP3Encoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..L1.activation import ReLU
from ..L1.layer_norm import LayerNorm
from ..L1.linear import Linear
from ..L1.pool import GlobalMaxPool
from .mlp import LayeredMLP

WIDTHS = (64, 128, 256)  # not in the configuration


class PointNetEncoderXYZ(nn.Module):
    def __init__(self, in_channels: int = 3, out_channels: int = 1024) -> None:
        super().__init__()
        self.linears = nn.ModuleList(
            Linear(inputs, outputs, bias=True) for inputs, outputs in zip((in_channels, *WIDTHS), WIDTHS)
        )
        self.norms = nn.ModuleList(LayerNorm(width) for width in WIDTHS)
        self.act = ReLU()
        self.pool = GlobalMaxPool()
        self.projection = Linear(WIDTHS[-1], out_channels, bias=True)
        self.final_norm = LayerNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, C] -> [B, E]"""
        for linear, norm in zip(self.linears, self.norms):
            x = self.act(norm(linear(x)))
        return self.final_norm(self.projection(self.pool(x)))


class DP3Encoder(nn.Module):
    def __init__(self, state_dim: int, out_channel: int, state_mlp_size: list[int]) -> None:
        super().__init__()
        self.extractor = PointNetEncoderXYZ(out_channels=out_channel)
        self.state_mlp = LayeredMLP(state_dim, state_mlp_size, activation_on_last=False)

    def forward(self, point_cloud: Tensor, agent_pos: Tensor) -> Tensor:
        """[B, N, 3], [B, S] -> [B, E + the last of state_mlp_size]"""
        return torch.cat((self.extractor(point_cloud), self.state_mlp(agent_pos)), -1)
