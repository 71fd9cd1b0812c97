"""Feed-forward blocks without a gate.

    y = act(x W1^T + b1) W2^T + b2
    y = relu(x W^T + b)                                             perceptron; activation none: x W^T + b
    y = p_L(.. p_2(p_1(x)))                                         layered: perceptrons

T tokens, D hidden, F intermediate; W1 [F, D], W2 [D, F]. hidden_act: gelu, gelu_tanh, quick_gelu, relu.
Rounded to the dtype of x after the activation, after the second product and, where fc1 and the activation are
not one kernel, after the first. A layered block has relu behind its last layer only where activation_on_last.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2MLP (vLLM: siglip2.Siglip2MLP, clip.CLIPMLP; timm:
layers.Mlp), torchrec.modules.mlp.Perceptron, torchrec.modules.mlp.MLP.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.activation import GELU, QuickGELU, ReLU
from ..L1.linear import Linear
from .parallel_linear import ColumnParallelLinear, RowParallelLinear

ACTIVATIONS = {"gelu": GELU, "gelu_tanh": lambda: GELU("tanh"), "quick_gelu": QuickGELU, "relu": ReLU}


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, hidden_act: str, bias: bool = True) -> None:
        super().__init__()
        if hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act must be one of {', '.join(ACTIVATIONS)}, not {hidden_act!r}")
        self.fc1 = ColumnParallelLinear(hidden_size, intermediate_size, bias)
        self.activation_fn = ACTIVATIONS[hidden_act]()
        self.fc2 = RowParallelLinear(intermediate_size, hidden_size, bias)
        self.hidden_act = hidden_act
        self.fuses = Fusion(self, "fc1", "activation_fn")

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        if self.fuses and not hidden_states.is_meta:
            first = self.fc1.linear
            return self.fc2(
                kernels.linear_activation(hidden_states, first.weight, first.bias, self.hidden_act)
            )
        return self.fc2(self.activation_fn(self.fc1(hidden_states)))


class Perceptron(nn.Module):
    def __init__(self, in_size: int, out_size: int, bias: bool = True, activation: str = "relu") -> None:
        super().__init__()
        if activation not in ("relu", "none"):
            raise ValueError(f"activation must be relu or none, not {activation!r}")
        self.linear = Linear(in_size, out_size, bias)
        self.activation_fn = ReLU() if activation == "relu" else None
        self.fuses = Fusion(self, "linear", "activation_fn") if activation == "relu" else False

    def forward(self, input: Tensor) -> Tensor:
        """[T, D] -> [T, F]"""
        if self.fuses and not input.is_meta:
            return kernels.linear_activation(input, self.linear.weight, self.linear.bias, "relu")
        product = self.linear(input)
        return product if self.activation_fn is None else self.activation_fn(product)


class LayeredMLP(nn.Module):
    def __init__(
        self, in_size: int, layer_sizes: list[int], bias: bool = True, activation_on_last: bool = True
    ) -> None:
        super().__init__()
        last = len(layer_sizes) - 1
        self.layers = nn.ModuleList(
            Perceptron(inputs, outputs, bias, "relu" if activation_on_last or layer < last else "none")
            for layer, (inputs, outputs) in enumerate(zip([in_size, *layer_sizes], layer_sizes))
        )

    def forward(self, input: Tensor) -> Tensor:
        """[T, D] -> [T, the last of layer_sizes]"""
        for layer in self.layers:
            input = layer(input)
        return input
