"""Linear layers by the way in which their weight is packed and, over several ranks, split.

    y = x W^T + b        W = [W_1; W_2; ...] for the packed ones: y = [y_1 | y_2 | ...]

T tokens, D input, N output. column: one matrix, split by outputs. merged: several matrices over one input
(gate, up). qkv: query, key and value projections, y = [q (H*K) | k (J*K) | v (J*K)], H query heads, J kv
heads, K head size. row: split by inputs. Products accumulate in at least float32; y has the dtype of x. On
one rank each is an L1 Linear or, with quant_method "bitnet", an L1 BitLinear, which has no bias.
Mirrors vllm.model_executor.layers.linear: ColumnParallelLinear, MergedColumnParallelLinear,
QKVParallelLinear, RowParallelLinear, with return_bias=False.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..L1.bitnet_linear import BitLinear
from ..L1.linear import Linear


class ColumnParallelLinear(nn.Module):
    def __init__(self, input_size: int, output_size: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = Linear(input_size, output_size, bias)

    def forward(self, input_: Tensor) -> Tensor:
        """[T, D] -> [T, N]"""
        return self.linear(input_)


class MergedColumnParallelLinear(nn.Module):
    def __init__(
        self, input_size: int, output_sizes: list[int], bias: bool = False, quant_method: str | None = None
    ) -> None:
        super().__init__()
        self.output_sizes = list(output_sizes)
        self.linear = _linear(input_size, self.output_sizes, bias, quant_method)

    def forward(self, input_: Tensor) -> Tensor:
        """[T, D] -> [T, sum(output_sizes)]"""
        return self.linear(input_)


class QKVParallelLinear(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int,
        bias: bool = False,
        quant_method: str | None = None,
    ) -> None:
        super().__init__()
        self.output_sizes = [
            size * head_size for size in (total_num_heads, total_num_kv_heads, total_num_kv_heads)
        ]
        self.linear = _linear(hidden_size, self.output_sizes, bias, quant_method)

    def forward(self, input_: Tensor) -> Tensor:
        """[T, D] -> [T, (H + 2J) K]"""
        return self.linear(input_)


class RowParallelLinear(nn.Module):
    def __init__(
        self, input_size: int, output_size: int, bias: bool = False, quant_method: str | None = None
    ) -> None:
        super().__init__()
        self.linear = _linear(input_size, [output_size], bias, quant_method)

    def forward(self, input_: Tensor) -> Tensor:
        """[T, D] -> [T, N]"""
        return self.linear(input_)


def _linear(input_size: int, output_sizes: list[int], bias: bool, quant_method: str | None) -> nn.Module:
    if quant_method is None:
        return Linear(input_size, sum(output_sizes), bias)
    if quant_method != "bitnet" or bias:
        raise ValueError(f"quant_method must be None, or 'bitnet' without a bias, not {quant_method!r}")
    return BitLinear(input_size, sum(output_sizes), output_sizes)
