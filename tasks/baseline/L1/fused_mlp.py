"""A narrow perceptron without biases, whose layers stay on the chip.

    h_0 = x,  h_{i+1} = relu(h_i W_i^T),  y = h_L W_L^T

M rows, L = n_hidden_layers. W_0 [n_neurons, n_input_dims], then [n_neurons, n_neurons], W_L [n_output_dims,
n_neurons]. `network_config` has tiny-cuda-nn's keys. Products accumulate in at least float32; y has the dtype
of x, to which layers may be rounded between.
Mirrors tinycudann.Network with otype FullyFusedMLP; W_L has no rows of padding.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.config import ConfigReader


class FusedMLP(nn.Module):
    def __init__(self, n_input_dims: int, n_output_dims: int, network_config: dict[str, Any]) -> None:
        super().__init__()
        reader = ConfigReader(network_config)
        reader.choice("otype", {"FullyFusedMLP": None, "CutlassMLP": None})
        reader.choice("activation", {"ReLU": None})
        reader.choice("output_activation", {"None": None})
        hidden = [reader.integer("n_neurons")] * reader.integer("n_hidden_layers")
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(outputs, inputs), requires_grad=False)
            for inputs, outputs in pairwise((n_input_dims, *hidden, n_output_dims))
        )

    def forward(self, x: Tensor) -> Tensor:
        """[M, n_input_dims] -> [M, n_output_dims]"""
        return kernels.fused_mlp(x, list(self.weights))
