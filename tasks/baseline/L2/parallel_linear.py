"""Linear layers by the way in which their weight is packed and, over several ranks, split.

    y = x W^T + b        W = [W_1; W_2; ...] for the packed ones: y = [y_1 | y_2 | ...]

T tokens, D input, N output. column: one matrix, split by outputs. merged: several matrices over one input
(gate, up). qkv: query, key and value projections, y = [q (H*K) | k (J*K) | v (J*K)], H query heads, J kv
heads, K head size. row: split by inputs. Products accumulate in at least float32; y has the dtype of x. Each
is an L1 Linear or, with quant_method "bitnet", an L1 BitLinear, which has no bias.

On several ranks (nn/partition) a rank has its share of the outputs of column, merged (of each matrix) and qkv
(whole heads), and y is its share. It has its share of the inputs of row: x is that share, and y the sum over
the ranks, rounded before it is added up; the first rank adds the bias.
Mirrors vllm.model_executor.layers.linear: ColumnParallelLinear, MergedColumnParallelLinear,
QKVParallelLinear, RowParallelLinear, with return_bias=False.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fastkernels.nn.partition import partition, split

from ..L1.all_reduce import AllReduce
from ..L1.bitnet_linear import BitLinear
from ..L1.linear import Linear


class ColumnParallelLinear(nn.Module):
    def __init__(self, input_size: int, output_size: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = _columns(input_size, output_size, [partition().share(output_size, "outputs")], bias)

    def forward(self, input_: Tensor) -> Tensor:
        """[T, D] -> [T, N]"""
        return self.linear(input_)


class MergedColumnParallelLinear(nn.Module):
    def __init__(
        self, input_size: int, output_sizes: list[int], bias: bool = False, quant_method: str | None = None
    ) -> None:
        super().__init__()
        mine, first = [], 0
        for size in output_sizes:
            share = partition().share(size, "outputs")
            mine.append(range(first + share.start, first + share.stop))
            first += size
        self.output_sizes = [len(share) for share in mine]
        self.linear = _columns(input_size, first, mine, bias, quant_method)

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
        heads, kv_heads = partition().heads(total_num_heads, total_num_kv_heads)
        # Heads are counted through queries, keys and values.
        keys, values = total_num_heads, total_num_heads + total_num_kv_heads
        mine = [
            range((first + share.start) * head_size, (first + share.stop) * head_size)
            for first, share in ((0, heads), (keys, kv_heads), (values, kv_heads))
        ]
        self.output_sizes = [len(share) for share in mine]
        total = (values + total_num_kv_heads) * head_size
        self.linear = _columns(hidden_size, total, mine, bias, quant_method)

    def forward(self, input_: Tensor) -> Tensor:
        """[T, D] -> [T, (H + 2J) K]"""
        return self.linear(input_)


class RowParallelLinear(nn.Module):
    def __init__(
        self, input_size: int, output_size: int, bias: bool = False, quant_method: str | None = None
    ) -> None:
        super().__init__()
        mine = partition().share(input_size, "inputs")
        self.linear = _linear(len(mine), [output_size], bias, quant_method)
        split(self.linear.weight, 1, input_size, [mine])
        if bias and partition().rank:
            split(self.linear.bias, 0, output_size, [])
        self.all_reduce = AllReduce() if partition().is_split else None

    def forward(self, input_: Tensor) -> Tensor:
        """[T, D] -> [T, N]"""
        output_TN = self.linear(input_)
        return output_TN if self.all_reduce is None else self.all_reduce(output_TN)


def _columns(
    input_size: int, output_size: int, mine: Sequence[range], bias: bool, quant_method: str | None = None
) -> Any:
    """A layer that has these of the outputs."""
    linear = _linear(input_size, [len(share) for share in mine], bias, quant_method)
    split(linear.weight, 0, output_size, mine)
    if bias:
        split(linear.bias, 0, output_size, mine)
    return linear


def _linear(input_size: int, output_sizes: list[int], bias: bool, quant_method: str | None) -> Any:
    if quant_method is None:
        return Linear(input_size, sum(output_sizes), bias)
    if quant_method != "bitnet" or bias:
        raise ValueError(f"quant_method must be None, or 'bitnet' without a bias, not {quant_method!r}")
    return BitLinear(input_size, sum(output_sizes), output_sizes)
