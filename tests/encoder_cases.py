"""Problems for the kernels of encoders, with their answers by plain formulas in float64.

B rows or images · T query tokens · S key tokens · H heads · K head dim · M, N rows and columns of a table
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

# What rounding may cost (relative L2 of a token): probabilities and outputs in 16 bits, sums in float32.
ROUNDING = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2e-6, torch.float64: 2e-14}


@dataclass(frozen=True)
class DenseCase:
    """Arguments of dense_attention, and the answer."""

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

    @property
    def args(self) -> tuple:
        return tuple(vars(self).values())[:-1]

    def on(self, device: str) -> DenseCase:
        """With tensors on a device; q, k and v keep their strides."""

        def move(x: Tensor) -> Tensor:
            flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            return flat.to(device).as_strided(x.shape, x.stride(), x.storage_offset())

        names = ["q_THK", "k_SHK", "v_SHK", "query_starts_B1", "key_starts_B1"]
        names += ["bias_HQS"] if self.bias_HQS is not None else []
        return replace(self, **{name: move(getattr(self, name)) for name in names})

    def error(self, o_THK: Tensor) -> float:
        """Worst relative L2 error of a token; NaN stays NaN."""
        if not len(o_THK):
            return 0.0
        difference = (o_THK.cpu().double() - self.answer_THK).flatten(1).norm(dim=1)
        return (difference / self.answer_THK.flatten(1).norm(dim=1)).max().item()

    def check(self, o_THK: Tensor) -> None:
        assert o_THK.shape == self.answer_THK.shape
        assert o_THK.dtype == self.q_THK.dtype
        assert o_THK.is_contiguous()
        error, limit = self.error(o_THK), ROUNDING[o_THK.dtype]
        assert error <= limit, f"error {error:.3g} above {limit:.3g}"


def dense_case(
    query_lens: list[int],
    key_lens: list[int],
    num_heads: int = 3,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    causal: bool = False,
    biased: bool = False,
) -> DenseCase:
    """q, k and v are parts of packed projections, their neighbours NaN; so is what lies in a bias behind the
    longest row."""
    generator = torch.Generator().manual_seed(seed)

    def packed(tokens: int, factor: float) -> Tensor:
        whole = torch.full((tokens, 3, num_heads, head_dim), torch.nan, dtype=dtype)
        whole[:, 1] = factor * torch.randn(tokens, num_heads, head_dim, generator=generator)
        return whole[:, 1]

    q, k, v = packed(sum(query_lens), 2), packed(sum(key_lens), 1), packed(sum(key_lens), 1)
    scale = head_dim**-0.5
    longest, bias = (max(query_lens), max(key_lens)), None
    if biased:
        whole = torch.full((num_heads, longest[0] + 2, longest[1] + 5), torch.nan, dtype=dtype)
        bias = whole[:, : longest[0], : longest[1]]
        bias.copy_(3 * torch.randn(bias.shape, generator=generator))
    starts = [torch.tensor([0, *accumulate(lens)], dtype=torch.int32) for lens in (query_lens, key_lens)]
    answer = torch.zeros(q.shape, dtype=torch.float64)
    for row, (query_len, key_len) in enumerate(zip(query_lens, key_lens, strict=True)):
        first_query, first_key = (int(starts[part][row]) for part in (0, 1))
        for i in range(query_len):
            seen = i + 1 if causal else key_len
            keys = slice(first_key, first_key + seen)
            for head in range(num_heads):
                scores = k[keys, head].double() @ q[first_query + i, head].double() * scale
                if bias is not None:
                    scores += bias[head, i, :seen].double()
                weights = scores.exp()
                answer[first_query + i, head] = weights @ v[keys, head].double() / weights.sum()
    return DenseCase(q, k, v, *starts, scale, *longest, causal, bias, answer)


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


LINEAR_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "silu")


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
        "silu": lambda: F.silu(z),
    }[name]()
    epsilon = torch.finfo(dtype).eps
    sums = inputs * torch.finfo(torch.float32).eps
    limit = (1.2 * (epsilon / 2 + sums) + epsilon / 2) * float(z.abs().max())
    return (x, weight, b if bias else None), answer, limit
