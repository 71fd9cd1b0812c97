"""Weights of four bits: expanded, multiplied by experts, and the activation between, against plain loops."""

import importlib

import pytest
import torch
from torch import Tensor

from fastkernels import kernels
from fastkernels.kernels import counters
from fastkernels.kernels.policy import interpreting
from tests.moe_cases import Shape, aligned, ids_of
from tests.pointwise_cases import poisoned, randn, worst_row_error
from tests.unit.kernels.hopper import MOST_SHARED, compiled
from tests.unit.kernels.implementations import REFERENCE, TORCH, TRITON, TRITON_DTYPE

ALL = pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
CODES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
LIMIT = {torch.float32: 4, torch.bfloat16: 1.5, torch.float16: 1.5}
ALPHA, MOST = 1.702, 7.0


def packed(
    *rows: int, groups: int, seed: int = 0, scales: tuple[int, int] = (118, 123)
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(256, (*rows, groups, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(*scales, (*rows, groups), generator=generator, dtype=torch.uint8)


def expanded(blocks: Tensor, scales: Tensor) -> Tensor:
    """float64 [..., 32 G], a code at a time: the low half of a byte comes first."""
    values = []
    for group, scale in zip(blocks.flatten(0, -2).tolist(), scales.flatten().tolist(), strict=True):
        for byte in group:
            values += [CODES[byte % 16] * 2.0 ** (scale - 127), CODES[byte // 16] * 2.0 ** (scale - 127)]
    return torch.tensor(values, dtype=torch.float64).view(*scales.shape[:-1], -1)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_expanded_exactly(dtype, impl):
    """Every byte, and scales from 2^-60 to 2^60."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).repeat(8, 1, 1)
    scales = torch.linspace(67, 187, 128).to(torch.uint8).view(8, 16)
    w = kernels.low_bit_dequant(blocks, scales, dtype, impl=impl)
    assert w.dtype == dtype
    assert torch.equal(w.double(), expanded(blocks, scales))


@ALL
def test_a_bfloat16_is_taken_apart_like_a_float32(impl):
    """At odd extents: rows that fill no tile, groups that fill none."""
    blocks, scales = packed(3, 5, groups=9)
    w = kernels.low_bit_dequant(blocks, scales, torch.float32, impl=impl)
    assert torch.equal(w.double(), expanded(blocks, scales))


def test_blocks_of_another_size_are_refused():
    blocks, scales = packed(4, groups=2)
    with pytest.raises(ValueError, match=r"a scale for every 32 elements.*\[4, 4, 8\].*\[4, 4\]"):
        kernels.low_bit_dequant(blocks.view(4, 4, 8), scales.repeat(1, 2), torch.float32)
    with pytest.raises(ValueError, match="scales must be uint8, not float32"):
        kernels.low_bit_dequant(blocks, scales.float(), torch.float32)


# ---------------------------------------------------------------- products by experts

SHAPES = [
    Shape(1, 8, 4, 48, 64),
    Shape(5, 4, 2, 32, 96, experts_used=2),
    Shape(7, 4, 1, 32, 32, experts_used=1),
    Shape(37, 6, 2, 80, 288),
    Shape(150, 3, 2, 160, 64),
    Shape(0, 4, 2, 32, 32),
]


def arguments(shape: Shape, dtype: torch.dtype, is_shared: bool, is_weighted: bool) -> tuple:
    ids_TK = ids_of(shape)
    rows = shape.tokens * (1 if is_shared else shape.top_k)
    x = randn(rows, shape.inputs, dtype=dtype)
    blocks, scales = packed(shape.experts, shape.outputs, groups=shape.inputs // 32)
    bias = randn(shape.experts, shape.outputs, dtype=dtype, seed=1)
    weights = randn(ids_TK.numel(), dtype=torch.float32, seed=2).abs() if is_weighted else None
    return x, blocks, scales, bias, *aligned(ids_TK, shape.experts), weights


def answer(shape: Shape, x, blocks, scales, bias, order, starts, weights) -> Tensor:
    """[S, N] float64, slot by slot."""
    experts_S = ids_of(shape).flatten().tolist()
    share, w_ENK = max(1, len(experts_S) // max(1, len(x))), expanded(blocks, scales)
    y_SN = torch.zeros(len(experts_S), shape.outputs, dtype=torch.float64)
    for slot, expert in enumerate(experts_S):
        y_SN[slot] = w_ENK[expert] @ x[slot // share].double() + bias[expert].double()
        if weights is not None:
            y_SN[slot] *= weights[slot].double()
    return y_SN


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, TRITON_DTYPE], ids=str)
@pytest.mark.parametrize(("is_shared", "is_weighted"), [(True, False), (False, True)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_linear(shape, is_shared, is_weighted, dtype, impl):
    args = arguments(shape, dtype, is_shared, is_weighted)
    if reason := kernels.registered["grouped_linear_mxfp4"].why_not(impl, args):
        assert (impl, dtype) == ("torch", torch.float16), reason
        return
    with poisoned():
        y_SN = kernels.grouped_linear_mxfp4(*args, impl=impl)
    assert y_SN.dtype == dtype
    limit = (2 if impl == "torch" else 1) * LIMIT[dtype]  # it rounds before the bias, too
    assert worst_row_error(y_SN, answer(shape, *args)) <= limit * torch.finfo(dtype).eps


@ALL
@pytest.mark.parametrize("wrong", ["nibbles", "bias", "bias_unweighted", "scale"])
def test_wrong_readings_are_seen(wrong, impl):
    """High half first, no bias, a bias beside the weighted sum, a scale of the next group."""
    shape = SHAPES[3]
    args = arguments(shape, torch.float32, False, True)
    x, blocks, scales, bias, order, starts, weights = args
    if wrong == "nibbles":
        blocks = (blocks >> 4) | (blocks << 4)
    elif wrong == "scale":
        scales = scales.roll(1, -1)
    else:
        bias = torch.zeros_like(bias)
    y = kernels.grouped_linear_mxfp4(x, blocks, scales, bias, order, starts, weights, impl=impl)
    if wrong == "bias_unweighted":
        y += args[3][ids_of(shape).flatten().long()]
    assert worst_row_error(y, answer(shape, *args)) > 1e-2


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_experts_without_tokens_are_not_read(impl):
    shape = SHAPES[1]
    x, blocks, scales, bias, *rest = arguments(shape, torch.float32, True, False)
    bias[2:] = torch.nan
    assert kernels.grouped_linear_mxfp4(x, blocks, scales, bias, *rest, impl=impl).isfinite().all()


def test_rows_of_another_width_are_refused():
    x, *rest = arguments(SHAPES[1], torch.float32, True, False)
    with pytest.raises(ValueError, match="weights of 96 inputs do not fit rows of 64"):
        kernels.grouped_linear_mxfp4(x[:, :64], *rest)


# ---------------------------------------------------------------- the activation


def glu_answer(x: Tensor, alpha: float = ALPHA, limit: float = MOST) -> Tensor:
    gate, up = x.double()[..., ::2], x.double()[..., 1::2]
    gate, up = torch.where(gate > limit, limit, gate), torch.where(up.abs() > limit, up.sign() * limit, up)
    return (up + 1) * gate / (1 + (-alpha * gate).exp())


@pytest.mark.parametrize("dtype", [torch.float32, TRITON_DTYPE], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 7), (40, 160), (2, 1500), (0, 8)])
@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_clamped_glu(impl, rows, width, dtype):
    x = randn(rows, 2 * width, dtype=dtype, scale=6.0)
    with poisoned():
        y = kernels.clamped_glu(x, ALPHA, MOST, impl=impl)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), glu_answer(x), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_the_gate_is_clamped_from_above_only_and_nan_stays(impl):
    x = torch.tensor([[-20.0, 3.0, 20.0, -20.0, torch.nan, 0.0, 1.0, torch.nan]])
    y = kernels.clamped_glu(x, ALPHA, MOST, impl=impl)[0]
    expected = [glu_answer(x)[0, 0].item(), -6 * 7 / (1 + torch.tensor(-ALPHA * 7.0).exp().item())]
    assert y[0].item() < 0
    torch.testing.assert_close(y[:2], torch.tensor(expected), rtol=1e-5, atol=0)
    assert y[2:].isnan().all()


# ---------------------------------------------------------------- all of it


def block_arguments(shape: Shape, dtype: torch.dtype) -> tuple:
    """shape.outputs: the intermediate size; shape.inputs: the hidden one."""
    ids_TK = ids_of(shape)
    x = randn(shape.tokens, shape.inputs, dtype=dtype)
    weights_TK = randn(*ids_TK.shape, dtype=torch.float32, seed=2).softmax(-1)
    first = packed(shape.experts, 2 * shape.outputs, groups=shape.inputs // 32, scales=(122, 126))
    second = packed(shape.experts, shape.inputs, groups=shape.outputs // 32, seed=1)
    biases = (randn(shape.experts, n, dtype=dtype, seed=n) for n in (2 * shape.outputs, shape.inputs))
    return x, weights_TK, ids_TK, *first, next(biases), *second, next(biases), ALPHA, MOST


@pytest.mark.parametrize("dtype", [torch.float32, TRITON_DTYPE], ids=str)
@pytest.mark.parametrize(
    "shape", [Shape(1, 8, 4, 64, 96), Shape(9, 6, 2, 32, 64), Shape(70, 3, 2, 32, 64)], ids=str
)
@pytest.mark.parametrize("impl", [pytest.param("parts", id="parts"), REFERENCE, TRITON])
def test_a_block_of_experts(impl, shape, dtype):
    args = block_arguments(shape, dtype)
    if impl == "parts" and dtype == torch.float16:
        return  # whatever serves each part: covered by the parts
    x, weights_TK, ids_TK, *(w13, s13, b13), w2, s2, b2, _, _ = args
    w13, w2, expected = expanded(w13, s13), expanded(w2, s2), torch.zeros(x.shape, dtype=torch.float64)
    clamped = False
    for t, ids in enumerate(ids_TK.tolist()):
        for j, e in enumerate(ids):
            both = w13[e] @ x[t].double() + b13[e].double()
            clamped |= bool((both.abs() > MOST).any())
            expected[t] += weights_TK[t, j].double() * (w2[e] @ glu_answer(both) + b2[e].double())
    assert clamped
    y = kernels.experts_mxfp4(*args, impl=impl)
    assert y.dtype == dtype
    assert worst_row_error(y, expected) <= 8 * torch.finfo(dtype).eps


@pytest.mark.skipif(not interpreting(), reason="runs in test_interpreted.py")
@pytest.mark.parametrize("tokens", [1, 9])
def test_triton_in_parts_and_fused_agree_bitwise(tokens, monkeypatch):
    """A part that a candidate replaces must not change how the others round. Counters are left at zero."""
    monkeypatch.setattr(counters, "_of_stream", {})
    args = block_arguments(Shape(tokens, 6, 3, 96, 160), torch.float16)
    fused = kernels.experts_mxfp4(*args, impl="triton")
    with kernels.use("triton"):
        parts = kernels.experts_mxfp4(*args, impl="parts")
    assert torch.equal(fused, parts)
    assert all(not zeros.any() for zeros in counters._of_stream.values())


@pytest.mark.parametrize("dtype", [torch.float32, TRITON_DTYPE], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("tokens", "experts", "width"), [(1, 8, 64), (32, 32, 1100), (3, 60, 520), (0, 4, 32)]
)
@pytest.mark.parametrize("impl", [REFERENCE, TRITON, pytest.param("parts", id="parts")])
def test_routing_of_few_tokens(impl, tokens, experts, width, has_bias, dtype):
    """In one part and several; the logits are rounded before the choice."""
    x, weight = (
        randn(tokens, width, dtype=dtype),
        randn(experts, width, dtype=dtype, seed=1, scale=width**-0.5),
    )
    bias = randn(experts, dtype=dtype, seed=2) if has_bias else None
    weights_TK, ids_TK = kernels.linear_topk(x, weight, bias, 4, True, impl=impl)
    logits = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    expected = logits.softmax(-1)
    assert (weights_TK.dtype, ids_TK.dtype) == (torch.float32, torch.int32)
    found = expected.gather(-1, ids_TK.long())
    # Another choice only among logits within a rounding of each other.
    close = 4 * torch.finfo(dtype).eps * logits.abs().max().item() if tokens else 0.0
    assert (expected.topk(4, -1).values - found).abs().max().item() <= close if tokens else True
    torch.testing.assert_close(
        weights_TK.double(), found / found.sum(-1, keepdim=True), rtol=8 * torch.finfo(dtype).eps, atol=1e-6
    )


def test_routing_without_its_bias_is_seen():
    x, weight = randn(9, 64, dtype=torch.float32), randn(8, 64, dtype=torch.float32, seed=1)
    bias = randn(8, dtype=torch.float32, seed=2)
    with_it, without = (kernels.linear_topk(x, weight, b, 4, True, impl="parts")[0] for b in (bias, None))
    assert (with_it - without).abs().max() > 1e-2


CALLS = {
    "low_bit_dequant": lambda: (*packed(4, groups=2), torch.float32),
    "grouped_linear_mxfp4": lambda: arguments(Shape(5, 4, 2, 32, 64), torch.float32, False, True),
    "clamped_glu": lambda: (randn(5, 8, dtype=torch.float32), ALPHA, MOST),
    "linear_topk": lambda: (
        randn(5, 8, dtype=torch.float32),
        randn(6, 8, dtype=torch.float32),
        None,
        2,
        True,
    ),
    "experts_mxfp4": lambda: block_arguments(Shape(5, 4, 2, 32, 64), torch.float32),
}


@pytest.mark.parametrize("kernel", CALLS)
def test_operators_agree_with_their_schema_and_fake(kernel):
    op = getattr(torch.ops.fastkernels, kernel).default
    torch.library.opcheck(op, CALLS[kernel](), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing")
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("size", ["alone", 0, 1, 2])
def test_code_for_hopper(size):
    """Of the first product of a real layer: within a processor's registers and shared memory."""
    module = importlib.import_module("fastkernels.kernels.grouped_linear_mxfp4_triton")
    tile = module.ALONE if size == "alone" else module.TILES[size][1]
    types = {
        **dict.fromkeys(("x", "bias", "y"), "*bf16"), "scales": "*u8",
        **dict.fromkeys(("word", "order", "starts"), "*i32"),
        **dict.fromkeys(("scaled_back", "alpha", "limit"), "fp32"),
    }  # fmt: skip
    constants = {
        **dict.fromkeys(("slot_weights", "sum", "counters")), "WEIGHTED": False, "GATED": True, "R": 4,
        "E": 32, "N": 5760, "K": 2880,
        "ALONE": size == "alone", "ASSEMBLY": tile.assembly,
        "DTYPE": module.TL_DTYPES[torch.bfloat16], "UNIT": module.UNIT[torch.bfloat16],
        "EXPERTS": 32, "TILE_M": tile.m, "TILE_N": tile.n, "TILE_K": tile.k, "TOGETHER": tile.together,
        "STAGES": tile.num_stages, "OVERLAPS": True,
    }  # fmt: skip
    made = compiled(module._multiply, types, constants, {"num_warps": tile.num_warps})
    assert ".local" not in made.asm["ptx"]
    assert "wgmma" in made.asm["ptx"]
    assert made.metadata.shared <= MOST_SHARED
