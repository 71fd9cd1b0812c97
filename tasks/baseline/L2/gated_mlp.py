"""Feed-forward block with a gate.

    u = act(x Wg^T) * (x Wu^T)
    u = rms_norm(u)                             only with sub_norm_eps
    y = u Wd^T

T tokens, D hidden, F intermediate; Wg and Wu [F, D] are one packed weight [2F, D], gate first, Wd [D, F].
hidden_act: silu, gelu, gelu_tanh, relu2. quant_method: of the products (parallel_linear.py). Rounded to the
dtype of x after the activation, after the last product and, where the first product and the activation are
not one kernel, after the first.
Mirrors vllm.model_executor.models.llama.LlamaMLP (also Qwen2MLP, MistralMLP, GemmaMLP) and, with
sub_norm_eps, transformers.models.bitnet.modeling_bitnet.BitNetMLP.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from ..L1.glu import GeluAndMul, ReluSquaredAndMul, SiluAndMul
from ..L1.rms_norm import RMSNorm
from .parallel_linear import MergedColumnParallelLinear, RowParallelLinear


class GatedMLP(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str = "silu",
        bias: bool = False,
        sub_norm_eps: float | None = None,
        quant_method: str | None = None,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size, [intermediate_size] * 2, bias, quant_method
        )
        self.act_fn = _activation(hidden_act)
        self.ffn_sub_norm = RMSNorm(intermediate_size, sub_norm_eps) if sub_norm_eps is not None else None
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias, quant_method)
        self.hidden_act = hidden_act
        self.fuses = quant_method is None and Fusion(self, "gate_up_proj", "act_fn")

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        if self.fuses and not x.is_meta:
            first = self.gate_up_proj.linear
            gated_TF = kernels.linear_glu(x, first.weight, first.bias, self.hidden_act)
        else:
            gated_TF = self.act_fn(self.gate_up_proj(x))
        return self.down_proj(gated_TF if self.ffn_sub_norm is None else self.ffn_sub_norm(gated_TF))


def _activation(name: str) -> nn.Module:
    if name == "silu":
        return SiluAndMul()
    if name in ("gelu", "gelu_tanh"):
        return GeluAndMul("tanh" if name == "gelu_tanh" else "none")
    if name == "relu2":
        return ReluSquaredAndMul()
    raise ValueError(f"hidden_act must be 'silu', 'gelu', 'gelu_tanh' or 'relu2', not {name!r}")
