"""Calls of the row-wise kernels with their answers by independent formulas in float64, and the gate that
compares.

T tokens · D width · H, J heads · K head dim · R rotated dims · P positions
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels import registered, rotary_table

Arguments = tuple[Any, ...]

# What correct rounding of correct arithmetic may cost, in units of the dtype's epsilon: 16-bit kernels
# compute in float32 and round at most twice (half a unit each); float32 kernels compute exp and sums in
# float32 itself, one unit each.
FLOOR = {torch.float16: 1.0, torch.bfloat16: 1.0, torch.float32: 2.0}
# The same where nothing is rounded to the inputs' 16 bits, which would cost a row a fifth of a unit. A sum in
# float32 loses far less; tensor cores cut off instead of rounding, so that a long one of theirs loses most.
UNROUNDED_FLOOR = 1 / 16


@dataclass(frozen=True)
class KernelCase:
    """One call: `make(dtype)` draws arguments on CPU, `answer(*args)` gives the exact outputs in float64.
    widens: 16-bit inputs have float32 outputs."""

    kernel: str
    name: str
    make: Callable[[torch.dtype], Arguments]
    answer: Callable[..., tuple[Tensor, ...]]
    widens: bool = False

    def __str__(self) -> str:
        return f"{self.kernel}-{self.name}"


def run(kernel: str, args: Arguments, impl: str) -> tuple[Tensor, ...]:
    """The kernel's outputs as a tuple."""
    out = registered[kernel](*args, impl=impl)
    return out if isinstance(out, tuple) else (out,)


def to_device(args: Arguments, device: str) -> Arguments:
    """The arguments on a device, with the strides that they have on CPU."""
    return tuple(_move(a, device) if isinstance(a, Tensor) else a for a in args)


def _move(x: Tensor, device: str) -> Tensor:
    flat = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return flat.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def worst_row_error(out: Tensor, exact: Tensor) -> float:
    """Largest relative L2 error of a row; NaN where either alone is not finite, also between equal
    infinities.
    """
    out, exact = out.cpu(), exact.cpu()
    finite = torch.isfinite(exact)
    if not torch.equal(torch.isfinite(out), finite):
        return math.nan
    difference = torch.where(finite, out.double() - exact, 0.0)
    size = torch.where(finite, exact, 0.0)
    rows = difference.norm(dim=-1) / size.norm(dim=-1).clamp(min=1e-300)
    return rows.max().item() if rows.numel() else 0.0


def check(case: KernelCase, dtype: torch.dtype, impl: str, device: str = "cpu") -> None:
    """Error-ratio gate: every output at most twice as wrong as the reference, or within the dtype's rounding.

    Also shape, dtype, contiguity, unchanged arguments and results in memory of their own; unwritten outputs
    are NaN.
    """
    args = to_device(case.make(dtype), device)
    exact = case.answer(*case.make(dtype))
    before = [a.clone() for a in args if isinstance(a, Tensor)]
    references = run(case.kernel, args, "reference")
    with poisoned():
        outputs = run(case.kernel, args, impl)
    wanted = torch.promote_types(dtype, torch.float32) if case.widens else dtype
    floor = FLOOR.get(dtype, 4.0) if wanted == dtype else UNROUNDED_FLOOR
    assert len(outputs) == len(exact)
    for out, reference, expected in zip(outputs, references, exact, strict=True):
        assert out.shape == expected.shape
        assert out.dtype == wanted
        assert out.is_contiguous()
        limit = max(2 * worst_row_error(reference, expected), floor * torch.finfo(dtype).eps)
        error = worst_row_error(out, expected)
        assert error <= limit, f"{case} {impl} {dtype}: {error:.3g} above {limit:.3g}"
        owned = [a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor) and a.numel()]
        assert not out.numel() or out.untyped_storage().data_ptr() not in owned
    for tensor, copy in zip((a for a in args if isinstance(a, Tensor)), before, strict=True):
        assert torch.equal(tensor.nan_to_num(), copy.nan_to_num()), "an argument was written"


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory holds NaN (largest integers): torch fills it so in deterministic mode."""
    torch.use_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def randn(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, dtype=torch.float64, generator=generator) * scale).to(dtype)


# rms_norm ---------------------------------------------------------------------------------------------------


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x, weight = x.double(), weight.double()
    return x * weight / torch.sqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / x.shape[-1] + eps)


def rms_norm_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(x: Tensor, weight: Tensor, eps: float, plus_one: bool = False) -> tuple[Tensor, ...]:
        return (normalised(x, weight.double() + plus_one, eps),)

    def make(t: int, d: int, scale: float = 1.0) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (randn(t, d, dtype=dt, scale=scale), randn(d, dtype=dt, seed=1) + 1, 1e-5)

    def heads(dt: torch.dtype) -> Arguments:
        """The keys of a packed [q | k | v]: three dimensions, two strides, an offset."""
        packed = randn(5, 3 * 64, dtype=dt)
        return packed[:, 64:128].view(5, 4, 16), randn(16, dtype=dt, seed=1), 1e-6

    def columns(dt: torch.dtype) -> Arguments:
        return randn(6, 96, dtype=dt)[:, 8:72], randn(64, dtype=dt, seed=1), 1e-6

    def of_shape(*shape: int) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (randn(*shape, dtype=dt), randn(shape[-1], dtype=dt, seed=1), 1e-6)

    cases = [KernelCase("rms_norm", f"T{t}-D{d}", make(t, d), answer) for t, d in shapes]
    return [
        *cases,
        KernelCase("rms_norm", "packed-heads", heads, answer),
        KernelCase("rms_norm", "columns", columns, answer),
        # eps matters only where rows are small, and float32 is needed where their squares overflow float16.
        KernelCase("rms_norm", "tiny-values", make(3, 64, scale=1e-3), answer),
        KernelCase("rms_norm", "large-values", make(3, 64, scale=1e3), answer),
        KernelCase("rms_norm", "one-dimension", of_shape(64), answer),
        KernelCase("rms_norm", "four-dimensions", of_shape(2, 3, 2, 8), answer),
        KernelCase("rms_norm", "plus-one", lambda dt: (*heads(dt), True), answer),
    ]


def add_rms_norm_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float, plus_one: bool = False
    ) -> tuple[Tensor, ...]:
        total = (x.double() + residual.double()).to(x.dtype)
        return normalised(total, weight.double() + plus_one, eps), total.double()

    def make(t: int, d: int) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            # A residual stream is larger than what a layer adds to it: the rounding of the sum is then
            # visible.
            return (
                randn(t, d, dtype=dt),
                randn(t, d, dtype=dt, seed=2, scale=30),
                randn(d, dtype=dt, seed=1) + 1,
                1e-5,
            )

        return arguments

    def columns(dt: torch.dtype) -> Arguments:
        x, residual, weight, eps = make(6, 96)(dt)
        return x[:, 8:72], residual[:, 16:80], weight[:64], eps

    cases = [KernelCase("add_rms_norm", f"T{t}-D{d}", make(t, d), answer) for t, d in shapes]
    plus_one = KernelCase("add_rms_norm", "plus-one", lambda dt: (*make(5, 96)(dt), True), answer)
    return [*cases, KernelCase("add_rms_norm", "columns", columns, answer), plus_one]


# layer_norm -------------------------------------------------------------------------------------------------


def layer_norm_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        x = x.double()
        if not x.numel():
            return (x,)
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return ((x - mean) / torch.sqrt(variance + eps) * weight.double() + bias.double(),)

    def make(t: int, d: int, scale: float = 1.0, mean: float = 0.0) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (
            (randn(t, d, dtype=torch.float64, scale=scale) + mean).to(dt),
            randn(d, dtype=dt, seed=1) + 1,
            randn(d, dtype=dt, seed=2),
            1e-5,
        )

    def columns(dt: torch.dtype) -> Arguments:
        x, weight, bias, eps = make(6, 96)(dt)
        return x[:, 8:72], weight[:64], bias[:64], eps

    def heads(dt: torch.dtype) -> Arguments:
        packed, (_, weight, bias, eps) = randn(5, 3 * 64, dtype=dt), make(1, 16)(dt)
        return packed[:, 64:128].view(5, 4, 16), weight, bias, eps

    return [
        *(KernelCase("layer_norm", f"T{t}-D{d}", make(t, d), answer) for t, d in shapes),
        KernelCase("layer_norm", "columns", columns, answer),
        KernelCase("layer_norm", "packed-heads", heads, answer),
        KernelCase("layer_norm", "tiny-values", make(3, 64, scale=1e-3), answer),
        KernelCase("layer_norm", "large-values", make(3, 64, scale=1e3), answer),
        KernelCase("layer_norm", "mean-of-30", make(3, 64, mean=30.0), answer),
    ]


def add_layer_norm_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    (alone, *_) = layer_norm_cases([(1, 64)])

    def answer(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
        total = (x.double() + residual.double()).to(x.dtype)
        return *alone.answer(total, weight, bias, eps), total.double()

    def make(t: int, d: int) -> Callable[[torch.dtype], Arguments]:
        # A residual stream is larger than what a layer adds to it: the rounding of the sum is then visible.
        return lambda dt: (
            randn(t, d, dtype=dt),
            randn(t, d, dtype=dt, seed=3, scale=30),
            randn(d, dtype=dt, seed=1) + 1,
            randn(d, dtype=dt, seed=2),
            1e-5,
        )

    def columns(dt: torch.dtype) -> Arguments:
        x, residual, weight, bias, eps = make(6, 96)(dt)
        return x[:, 8:72], residual[:, 16:80], weight[:64], bias[:64], eps

    cases = [KernelCase("add_layer_norm", f"T{t}-D{d}", make(t, d), answer) for t, d in shapes]
    return [*cases, KernelCase("add_layer_norm", "columns", columns, answer)]


# activation -------------------------------------------------------------------------------------------------


def activation_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(x: Tensor, name: str, divisor: float) -> tuple[Tensor, ...]:
        x = x.double()
        if name == "log_sigmoid":
            return (-torch.logaddexp(torch.zeros((), dtype=torch.float64), -x) / divisor,)
        if name == "gelu":
            return (x / 2 * torch.erfc(-x / math.sqrt(2)) / divisor,)
        if name == "mish":
            return (x * torch.tanh(torch.logaddexp(torch.zeros((), dtype=torch.float64), x)),)
        if name == "relu":
            return (x.clamp(min=0),)
        if name == "relu2":
            return (x.clamp(min=0) ** 2,)
        if name == "sigmoid":
            return (1 / (1 + torch.exp(-x)),)
        if name == "tanh":
            return (torch.tanh(x),)
        if name in ("silu", "quick_gelu"):
            steepness = 1.702 if name == "quick_gelu" else 1.0
            return (x / (1 + torch.exp(-steepness * x)) / divisor,)
        return (x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / divisor,)

    def make(
        t: int, f: int, name: str, scale: float = 1.0, offset: float = 0.0
    ) -> Callable[[torch.dtype], Arguments]:
        divisor = 16.0 if name == "log_sigmoid" else 1.0
        return lambda dt: (randn(t, f, dtype=dt, scale=scale) + offset, name, divisor)

    def case(label: str, arguments: Callable[[torch.dtype], Arguments]) -> KernelCase:
        return KernelCase("activation", label, arguments, answer)

    kinds = ("gelu", "gelu_tanh", "log_sigmoid", "mish", "quick_gelu", "relu", "relu2", "sigmoid", "silu",
             "tanh")  # fmt: skip
    return [
        *(case(f"{a}-T{t}-F{f}", make(t, f, a)) for t, f in shapes for a in kinds),
        *(case(f"{a}-steep", make(3, 32, a, 3.0)) for a in kinds),
        case("log_sigmoid-very-steep", make(3, 33, "log_sigmoid", 30.0)),
        # Close to zero all digits of the answer come from log1p: log(1 + e) alone would have lost them.
        case("log_sigmoid-close-to-zero", make(3, 33, "log_sigmoid", 0.5, 9.0)),
        case("columns", lambda dt: (randn(5, 96, dtype=dt)[:, 8:71], "gelu", 1.0)),
        case("three-dimensions", lambda dt: (randn(2, 3, 33, dtype=dt), "gelu", 1.0)),
    ]


def check_gelu_tail(impl: str, device: str = "cpu") -> None:
    """Each element by itself, which beside larger ones of its row would not count: x/2 (1 + erf) has no right
    digit of it below -5.
    """
    x = torch.linspace(-10, -1, 4000).view(4, -1)
    exact = x.double() / 2 * torch.erfc(-x.double() / math.sqrt(2))
    (y,) = run("activation", (x.to(device), "gelu", 1.0), impl)
    torch.testing.assert_close(y.cpu().double(), exact, rtol=1e-5, atol=0)


# glu --------------------------------------------------------------------------------------------------------


GATES = ("silu", "gelu", "gelu_tanh", "relu2")


def _gated(x: Tensor, activation: str) -> Tensor:
    half = x.shape[-1] // 2
    gate, up = x[..., :half].double(), x[..., half:].double()
    if activation == "silu":
        active = gate / (1 + torch.exp(-gate))
    elif activation == "gelu":
        active = gate / 2 * torch.erfc(-gate / math.sqrt(2))
    elif activation == "relu2":
        active = torch.where(gate > 0, gate * gate, 0)
    else:
        active = gate / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return active * up


def glu_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(x: Tensor, activation: str) -> tuple[Tensor, ...]:
        return (_gated(x, activation),)

    def make(t: int, f: int, activation: str, scale: float = 1.0) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (randn(t, 2 * f, dtype=dt, scale=scale), activation)

    return [
        *(KernelCase("glu", f"{a}-T{t}-F{f}", make(t, f, a), answer) for t, f in shapes for a in GATES),
        *(KernelCase("glu", f"{a}-steep", make(3, 32, a, 3.0), answer) for a in GATES),
        KernelCase("glu", "columns", lambda dt: (randn(5, 96, dtype=dt)[:, 8:72], "silu"), answer),
        KernelCase("glu", "three-dimensions", lambda dt: (randn(2, 3, 40, dtype=dt), "silu"), answer),
    ]


# gated_rms_norm ---------------------------------------------------------------------------------------------


def gated_rms_norm_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(
        x: Tensor, gate: Tensor, weight: Tensor, eps: float, gate_first: bool, act: str = "silu"
    ) -> tuple[Tensor, ...]:
        z = gate.double()
        opened = (z if act == "silu" else 1) / (1 + torch.exp(-z))
        if gate_first:
            return (normalised(x.double() * opened, weight, eps),)
        return (normalised(x, weight, eps) * opened,)

    def make(t: int, d: int, scale: float = 1.0) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (
            randn(t, d, dtype=dt, scale=scale),
            randn(t, d, dtype=dt, seed=2, scale=2.0),
            randn(d, dtype=dt, seed=1) + 1,
            1e-6,
            False,
        )

    def heads(dt: torch.dtype) -> Arguments:
        """The gate of a packed product: three dimensions, two strides, an offset."""
        gate = randn(5, 3 * 64, dtype=dt, seed=2)[:, 64:128].view(5, 4, 16)
        return randn(5, 4, 16, dtype=dt), gate, randn(16, dtype=dt, seed=1), 1e-6, False

    def groups(gate_first: bool) -> Callable[[torch.dtype], Arguments]:
        """Each of four groups has weights of its own."""

        def arguments(dt: torch.dtype) -> Arguments:
            x, gate, *_ = heads(dt)
            return x, gate, randn(4, 16, dtype=dt, seed=1) + 1, 1e-3, gate_first

        return arguments

    return [
        *(KernelCase("gated_rms_norm", f"T{t}-D{d}", make(t, d), answer) for t, d in shapes),
        KernelCase("gated_rms_norm", "packed-heads", heads, answer),
        KernelCase("gated_rms_norm", "groups", groups(False), answer),
        KernelCase("gated_rms_norm", "gate-first", groups(True), answer),
        KernelCase("gated_rms_norm", "sigmoid", lambda dt: (*heads(dt), "sigmoid"), answer),
        KernelCase("gated_rms_norm", "tiny-values", make(3, 64, scale=1e-3), answer),
    ]


# softmax ----------------------------------------------------------------------------------------------------


def softmax_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(x: Tensor) -> tuple[Tensor, ...]:
        x = x.double()
        y = torch.exp(x - torch.logsumexp(x, -1, keepdim=True))
        return (
            torch.where(x.isnan() | (x == torch.inf), torch.nan, y).masked_fill(
                y.isnan().any(-1, True), torch.nan
            ),
        )

    def make(t: int, d: int, scale: float) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (randn(t, d, dtype=dt, scale=scale),)

    def masked(dt: torch.dtype) -> Arguments:
        x = randn(4, 50, dtype=dt)
        x[0, 7:] = x[1, :-1] = x[2, ::2] = -torch.inf
        return (x,)

    def not_finite(dt: torch.dtype) -> Arguments:
        x = randn(4, 50, dtype=dt)
        x[0, 7], x[1, 3], x[2] = torch.nan, torch.inf, -torch.inf
        return (x,)

    def wide(dt: torch.dtype) -> Arguments:
        """Rows that are cut into parts, some of them masked as a whole."""
        x = randn(6, 17001, dtype=dt, scale=3.0)
        x[0, 9000:] = x[1, :16999] = -torch.inf
        x[2, 7], x[3, 16999], x[4] = torch.nan, torch.inf, -torch.inf
        return (x,)

    return [
        *(KernelCase("softmax", f"T{t}-D{d}", make(t, d, 3.0), answer) for t, d in shapes),
        KernelCase("softmax", "large-values", make(3, 40, 1e3), answer),
        KernelCase("softmax", "masked", masked, answer),
        KernelCase("softmax", "not-finite", not_finite, answer),
        KernelCase("softmax", "wide", wide, answer),
        KernelCase("softmax", "columns", lambda dt: (randn(5, 96, dtype=dt)[:, 8:71],), answer),
        KernelCase("softmax", "three-dimensions", lambda dt: (randn(2, 3, 33, dtype=dt),), answer),
    ]


# embedding, linear ------------------------------------------------------------------------------------------


def embedding_cases() -> list[KernelCase]:
    def answer(ids: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        rows = [weight[i].double() for i in ids.flatten().tolist()]
        return (
            torch.stack(rows).view(*ids.shape, -1) if rows else weight.new_empty(0, weight.shape[1]).double(),
        )

    def make(ids: Tensor) -> Callable[[torch.dtype], Arguments]:
        return lambda dt: (ids, randn(11, 24, dtype=dt))

    return [
        KernelCase("embedding", "ids", make(torch.tensor([0, 10, 3, 3, 7])), answer),
        KernelCase("embedding", "int32", make(torch.tensor([10, 0], dtype=torch.int32)), answer),
        KernelCase("embedding", "two-dimensions", make(torch.tensor([[1, 2, 3], [4, 5, 6]])), answer),
        KernelCase("embedding", "none", make(torch.tensor([], dtype=torch.int64)), answer),
    ]


def linear_cases(shapes: list[tuple[int, int, int]]) -> list[KernelCase]:
    def answer(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        product = torch.einsum("...k,nk->...n", x.double(), weight.double())
        return (product if bias is None else product + bias.double(),)

    def make(t: int, k: int, n: int, has_bias: bool) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            bias = randn(n, dtype=dt, seed=2) if has_bias else None
            return randn(t, k, dtype=dt), randn(n, k, dtype=dt, seed=1, scale=k**-0.5), bias

        return arguments

    def columns(dt: torch.dtype) -> Arguments:
        x, weight, bias = make(5, 48, 7, True)(dt)
        return x[:, 8:40], weight[:, :32], bias

    def two_strides(dt: torch.dtype) -> Arguments:
        """Rows that no single stride reaches, as the last tokens of padded sequences."""
        _, weight, bias = make(1, 32, 7, True)(dt)
        return randn(2, 5, 96, dtype=dt)[:, 2:, 8:40], weight, bias

    return [
        *(KernelCase("linear", f"T{t}-K{k}-N{n}", make(t, k, n, False), answer) for t, k, n in shapes),
        *(KernelCase("linear", f"T{t}-K{k}-N{n}-bias", make(t, k, n, True), answer) for t, k, n in shapes),
        KernelCase("linear", "columns", columns, answer),
        KernelCase("linear", "two-strides", two_strides, answer),
    ]


def bitnet_linear_cases(shapes: list[tuple[int, int, list[int]]]) -> list[KernelCase]:
    """Shapes (T, K, outputs of each matrix); also rows that no single stride reaches."""

    def answer(x: Tensor, weight: Tensor, omega: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """Products of whole numbers, one matrix after another."""
        largest = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-5)
        scale = torch.full_like(largest, 127) / largest
        codes = torch.round(x.float() * scale).long()
        found = []
        for packed, factor in zip(weight.split([size // 4 for size in sizes]), omega):
            values = torch.cat([packed // 4**j % 4 for j in range(4)]).long() - 1
            found.append((codes @ values.T).double() / scale.double() * factor.double())
        return (torch.cat(found, dim=-1),)

    def make(t: int, k: int, sizes: list[int]) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            return randn(t, k, dtype=dt), _packed(k, sizes), torch.linspace(0.5, 1.5, len(sizes)), sizes

        return arguments

    def two_strides(dt: torch.dtype) -> Arguments:
        return randn(2, 5, 96, dtype=dt)[:, 2:, 8:40], _packed(32, [16]), torch.ones(1), [16]

    return [
        *(KernelCase("bitnet_linear", f"T{t}-K{k}-N{sum(n)}", make(t, k, n), answer) for t, k, n in shapes),
        KernelCase("bitnet_linear", "two-strides", two_strides, answer),
    ]


def _packed(inputs: int, sizes: list[int]) -> Tensor:
    """Bytes without the two-bit field 3."""
    fields = torch.randint(3, (4, sum(sizes) // 4, inputs), generator=torch.Generator().manual_seed(1))
    return sum(fields[j] * 4**j for j in range(4)).to(torch.uint8)  # pyright: ignore[reportAttributeAccessIssue]


def linear_float32_cases(
    shapes: list[tuple[int, int, int]], rows_of_strides: bool = True
) -> list[KernelCase]:
    """Those of linear; rows_of_strides: also several rows that lie apart."""
    cases = linear_cases(shapes)[: None if rows_of_strides else 2 * len(shapes)]
    return [replace(case, kernel="linear_float32", widens=True) for case in cases]


def linear_glu_cases(shapes: list[tuple[int, int, int]], two_strides: bool = True) -> list[KernelCase]:
    """Shapes (T, D, F); two_strides: also four rows that no single stride reaches."""

    def answer(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, ...]:
        product = torch.einsum("...d,nd->...n", x.double(), weight.double())
        return (_gated(product if bias is None else product + bias.double(), activation),)

    def of_linear(case: KernelCase, activation: str) -> KernelCase:
        return KernelCase(
            "linear_glu", f"{activation}-{case.name}", lambda dt: (*case.make(dt), activation), answer
        )

    def rows_of_two_strides(dt: torch.dtype) -> Arguments:
        bias = randn(10, dtype=dt, seed=2)
        weight = randn(10, 48, dtype=dt, seed=1, scale=32**-0.5)[:, 8:40]
        return randn(2, 5, 96, dtype=dt)[:, 3:, 8:40], weight, bias, "silu"

    cases = linear_cases([(t, d, 2 * f) for t, d, f in shapes])[: 2 * len(shapes)]  # without and with a bias
    return [
        *(of_linear(case, activation) for case in cases for activation in GATES),
        *([KernelCase("linear_glu", "two-strides", rows_of_two_strides, answer)] if two_strides else []),
    ]


# rope -------------------------------------------------------------------------------------------------------


def rope_cases(shapes: list[tuple[int, int, int, int, int]]) -> list[KernelCase]:
    """Shapes (T, H, J, K, R)."""

    def answer(positions: Tensor, q: Tensor, k: Tensor, cos_sin: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos_sin.double()[positions.long()].unsqueeze(1).chunk(2, dim=-1)
        turn, rotated = torch.complex(cos, sin), cos_sin.shape[-1]

        def turned(x: Tensor) -> Tensor:
            first, second = x[..., :rotated].double().chunk(2, dim=-1)
            z = torch.complex(first, second) * turn
            return torch.cat((z.real, z.imag, x[..., rotated:].double()), dim=-1)

        return turned(q), turned(k)

    def make(t: int, h: int, j: int, k: int, r: int, *, integer: torch.dtype = torch.int64,
             table: torch.dtype | None = torch.float32) -> Callable[[torch.dtype], Arguments]:  # fmt: skip
        def arguments(dt: torch.dtype) -> Arguments:
            """q and k are views of one packed projection; a table of None has the dtype of q."""
            generator = torch.Generator().manual_seed(3)
            positions = torch.randint(0, 40, (t,), generator=generator, dtype=integer)
            packed = randn(t, (h + 2 * j) * k, dtype=dt)
            q, key = packed[:, : h * k].view(t, h, k), packed[:, h * k : (h + j) * k].view(t, j, k)
            kind = dt if dt == torch.float64 or table is None else table
            parameters = {"rope_theta": 100.0, "partial_rotary_factor": r / k}
            return positions, q, key, rotary_table(k, 40, parameters, kind, "cpu")

        return arguments

    return [
        *(KernelCase("rope", "-".join(map(str, shape)), make(*shape), answer) for shape in shapes),
        KernelCase("rope", "int32", make(5, 4, 2, 16, 16, integer=torch.int32), answer),
        KernelCase("rope", "table-of-the-dtype", make(5, 4, 2, 16, 16, table=None), answer),
    ]


# sigmoid_gate -----------------------------------------------------------------------------------------------


def sigmoid_gate_cases(shapes: list[tuple[int, int]]) -> list[KernelCase]:
    def answer(x: Tensor, gate: Tensor, residual: Tensor | None) -> tuple[Tensor, ...]:
        y = x.double() / (1 + torch.exp(-gate.double()))
        return (y if residual is None else y + residual.double(),)

    def make(t: int, d: int, by_row: bool) -> Callable[[torch.dtype], Arguments]:
        def arguments(dt: torch.dtype) -> Arguments:
            gate = randn(t, 1 if by_row else d, dtype=dt, seed=1, scale=3)
            return randn(t, d, dtype=dt), gate, randn(t, d, dtype=dt, seed=2, scale=3) if by_row else None

        return arguments

    def heads(dt: torch.dtype) -> Arguments:
        """Gates of the heads of a packed [query | gate] each, and the second half of wider rows."""
        packed, wide = randn(5, 4, 2 * 16, dtype=dt, seed=1), randn(5, 128, dtype=dt)
        return wide[:, 64:].view(5, 4, 16), packed[..., 16:], None

    return [
        *(KernelCase("sigmoid_gate", f"T{t}-D{d}", make(t, d, False), answer) for t, d in shapes),
        *(KernelCase("sigmoid_gate", f"T{t}-D{d}-row", make(t, d, True), answer) for t, d in shapes),
        KernelCase("sigmoid_gate", "packed-heads", heads, answer),
    ]
