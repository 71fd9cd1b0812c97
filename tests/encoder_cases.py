"""Problems for the kernels of encoders, with their answers by plain formulas in float64.

B rows or images · T query tokens · S key tokens · H heads · K head dim · M, N rows and columns of a table
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

# What rounding may cost (relative L2 of a token): probabilities and outputs in 16 bits, sums in float32.
ROUNDING = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2e-6, torch.float64: 2e-14}


def worst_error(o_THK: Tensor, answer_THK: Tensor) -> float:
    """Relative L2, of the worst token; NaN stays NaN."""
    if not len(o_THK):
        return 0.0
    difference = (o_THK.double() - answer_THK).flatten(1).norm(dim=1)
    return (difference / answer_THK.flatten(1).norm(dim=1)).max().item()


def limit_of(dtype: torch.dtype, answer_THK: Tensor, plain: Callable[[torch.dtype], Tensor]) -> float:
    """What a token of attention may be wrong by. Scores of many keys or dimensions cost float32 more than
    ROUNDING says: as the judge allows, twice what the plain formula loses in it."""
    if dtype != torch.float32:
        return ROUNDING[dtype]
    return max(ROUNDING[dtype], 2 * worst_error(plain(dtype), answer_THK))


@dataclass(frozen=True)
class DenseCase:
    """Arguments of dense_attention, the answer, and the relative L2 error that a token may have."""

    q_THK: Tensor
    k_SHK: Tensor
    v_SHK: Tensor
    query_starts_B1: Tensor
    key_starts_B1: Tensor
    scale: float
    max_query_len: int
    max_key_len: int
    causal: bool
    bias_HQS: Tensor | None
    answer_THK: Tensor
    limit: float

    @property
    def args(self) -> tuple:
        return tuple(vars(self).values())[:-2]

    def on(self, device: str) -> DenseCase:
        """With tensors on a device; q, k and v keep their strides."""

        def move(x: Tensor) -> Tensor:
            flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            return flat.to(device).as_strided(x.shape, x.stride(), x.storage_offset())

        names = ["q_THK", "k_SHK", "v_SHK", "query_starts_B1", "key_starts_B1"]
        names += ["bias_HQS"] if self.bias_HQS is not None else []
        return replace(self, **{name: move(getattr(self, name)) for name in names})

    def error(self, o_THK: Tensor) -> float:
        return worst_error(o_THK.cpu(), self.answer_THK)

    def check(self, o_THK: Tensor) -> None:
        assert o_THK.shape == self.answer_THK.shape
        assert o_THK.dtype == self.q_THK.dtype
        assert o_THK.is_contiguous()
        error = self.error(o_THK)
        assert error <= self.limit, f"error {error:.3g} above {self.limit:.3g}"


def dense_case(
    query_lens: list[int],
    key_lens: list[int],
    num_heads: int = 3,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    causal: bool = False,
    biased: bool = False,
    num_kv_heads: int | None = None,
) -> DenseCase:
    """q, k and v are parts of packed projections, their neighbours NaN; so is what lies in a bias behind the
    longest row."""
    generator = torch.Generator().manual_seed(seed)

    def packed(tokens: int, factor: float, heads: int) -> Tensor:
        whole = torch.full((tokens, 3, heads, head_dim), torch.nan, dtype=dtype)
        whole[:, 1] = factor * torch.randn(tokens, heads, head_dim, generator=generator)
        return whole[:, 1]

    kv_heads = num_kv_heads or num_heads
    q, k, v = packed(sum(query_lens), 2, num_heads), *(packed(sum(key_lens), 1, kv_heads) for _ in "kv")
    scale = head_dim**-0.5
    longest, bias = (max(query_lens), max(key_lens)), None
    if biased:
        whole = torch.full((num_heads, longest[0] + 2, longest[1] + 5), torch.nan, dtype=dtype)
        bias = whole[:, : longest[0], : longest[1]]
        bias.copy_(3 * torch.randn(bias.shape, generator=generator))
    starts = [torch.tensor([0, *accumulate(lens)], dtype=torch.int32) for lens in (query_lens, key_lens)]

    def plain(precision: torch.dtype) -> Tensor:
        answers = []
        for row in range(len(query_lens)):
            of_q, of_k = (slice(part[row], part[row + 1]) for part in starts)
            q_QHK, k_SHK, v_SHK = (x.to(precision) for x in (q[of_q], k[of_k], v[of_k]))
            k_SHK, v_SHK = (x.repeat_interleave(num_heads // kv_heads, dim=1) for x in (k_SHK, v_SHK))
            scores_HQS = torch.einsum("qhk,shk->hqs", q_QHK, k_SHK) * scale
            if bias is not None:
                scores_HQS += bias[:, : len(q_QHK), : len(k_SHK)].to(precision)
            if causal:
                later = torch.ones_like(scores_HQS[0], dtype=torch.bool).triu(1)
                scores_HQS.masked_fill_(later, -torch.inf)
            answers.append(torch.einsum("hqs,shk->qhk", scores_HQS.softmax(-1), v_SHK))
        return torch.cat(answers)

    answer = plain(torch.float64)
    limit = limit_of(dtype, answer, plain)
    return DenseCase(q, k, v, *starts, scale, *longest, causal, bias, answer, limit)


def resized(table_MND: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
    """torch's own interpolation in float64, image by image; one column as the transpose of one row, because
    torch 2.13 gets several rows of one column wrong on a CPU."""
    table = table_MND.double().permute(2, 0, 1)[None]

    def one(height: int, width: int) -> Tensor:
        options = {"mode": "bilinear", "antialias": True, "align_corners": False}
        if width == 1:
            turned = torch.nn.functional.interpolate(table.mT.contiguous(), (1, height), **options)
            return turned[0, :, 0].T
        return torch.nn.functional.interpolate(table, (height, width), **options)[0].flatten(1).T

    return torch.cat([one(*size) for size in sizes])


LINEAR_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")


def linear_activation_case(
    rows: tuple[int, ...], inputs: int, outputs: int, name: str, dtype: torch.dtype, bias: bool = True
) -> tuple[tuple[Tensor, Tensor, Tensor | None], Tensor, float]:
    """x, weight and bias; act(x W^T + b) in float64; the error that an element may have: the product rounded
    once, the slope of an activation (at most 1.2), the activation rounded once."""
    generator = torch.Generator().manual_seed(len(name) + inputs)
    x, weight, b = (
        torch.randn(shape, generator=generator, dtype=torch.float64).mul(scale).to(dtype)
        for shape, scale in (((*rows, inputs), 1.0), ((outputs, inputs), inputs**-0.5), ((outputs,), 1.0))
    )
    z = x.double() @ weight.double().T + (b.double() if bias else 0)
    answer = {
        "gelu": lambda: F.gelu(z),
        "gelu_tanh": lambda: F.gelu(z, approximate="tanh"),
        "quick_gelu": lambda: z * torch.sigmoid(1.702 * z),
        "relu": lambda: F.relu(z),
        "silu": lambda: F.silu(z),
    }[name]()
    epsilon = torch.finfo(dtype).eps
    sums = inputs * torch.finfo(torch.float32).eps
    limit = (1.2 * (epsilon / 2 + sums) + epsilon / 2) * float(z.abs().max())
    return (x, weight, b if bias else None), answer, limit
