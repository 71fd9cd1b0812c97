"""Feed-forward block with a gate of squared ReLU and a norm before its last projection.

    u = rms_norm(relu(x Wg^T)^2 * (x Wu^T))
    y = u Wd^T

T tokens, D hidden, F intermediate; Wg and Wu [F, D] are one packed weight [2F, D], gate first, Wd [D, F].
quant_method: of the products (parallel_linear.py). Rounded to the dtype of x after the first product, the
activation, the norm and the last product.
Mirrors transformers.models.bitnet.modeling_bitnet.BitNetMLP.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.glu import ReluSquaredAndMul
from ..L1.rms_norm import RMSNorm
from .parallel_linear import MergedColumnParallelLinear, RowParallelLinear


class NormedGatedMLP(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        rms_norm_eps: float = 1e-5,
        bias: bool = False,
        quant_method: str | None = None,
    ) -> None:
        super().__init__()
        sizes = [intermediate_size] * 2
        self.gate_up_proj = MergedColumnParallelLinear(hidden_size, sizes, bias, quant_method)
        self.act_fn = ReluSquaredAndMul()
        self.ffn_sub_norm = RMSNorm(intermediate_size, rms_norm_eps)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias, quant_method)

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        return self.down_proj(self.ffn_sub_norm(self.act_fn(self.gate_up_proj(x))))
