"""Feed-forward block with a gate.

    y = (act(x Wg^T) * (x Wu^T)) Wd^T

T tokens, D hidden, F intermediate; Wg and Wu [F, D] are one packed weight [2F, D], gate first, Wd [D, F].
hidden_act: silu, gelu, gelu_tanh. Rounded to the dtype of x after the activation, after the last product and,
where the first product and the activation are not one kernel, after the first.
Mirrors vllm.model_executor.models.llama.LlamaMLP (also Qwen2MLP, MistralMLP, GemmaMLP).
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.glu import GeluAndMul, SiluAndMul
from .parallel_linear import MergedColumnParallelLinear, RowParallelLinear


class GatedMLP(nn.Module):
    def __init__(
        self, hidden_size: int, intermediate_size: int, hidden_act: str = "silu", bias: bool = False
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(hidden_size, [intermediate_size] * 2, bias)
        self.act_fn = _activation(hidden_act)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias)
        self.hidden_act = hidden_act
        self.fuses = Fusion(self, "gate_up_proj", "act_fn")

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        if self.fuses and not x.is_meta:
            first = self.gate_up_proj.linear
            return self.down_proj(kernels.linear_glu(x, first.weight, first.bias, self.hidden_act))
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


def _activation(name: str) -> nn.Module:
    if name == "silu":
        return SiluAndMul()
    if name in ("gelu", "gelu_tanh"):
        return GeluAndMul("tanh" if name == "gelu_tanh" else "none")
    raise ValueError(f"hidden_act must be 'silu', 'gelu' or 'gelu_tanh', not {name!r}")
