"""Feed-forward block without a gate.

    y = act(x W1^T + b1) W2^T + b2

T tokens, D hidden, F intermediate; W1 [F, D], W2 [D, F]. hidden_act: gelu, gelu_tanh, quick_gelu. Rounded to
the dtype of x after the activation, after the second product and, where fc1 and the activation are not one
kernel, after the first.
Mirrors transformers.models.siglip2.modeling_siglip2.Siglip2MLP (vLLM: siglip2.Siglip2MLP, clip.CLIPMLP; timm:
layers.Mlp).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.activation import GELU, QuickGELU
from .parallel_linear import ColumnParallelLinear, RowParallelLinear

ACTIVATIONS = {"gelu": GELU, "gelu_tanh": lambda: GELU("tanh"), "quick_gelu": QuickGELU}


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
