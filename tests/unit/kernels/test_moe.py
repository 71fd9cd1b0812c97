"""Routing, alignment, grouped products and the sum: every implementation on this machine against loops."""

import pytest
import torch
from fastkernels.baseline.L2.moe import SparseMoE

from fastkernels import kernels
from fastkernels.kernels.grouped_linear_triton import TILES, most_row_tiles, tile_for
from fastkernels.nn.random_weights import random_weights
from tests.moe_cases import (
    SHAPES,
    Shape,
    aligned,
    chosen,
    grouped_answer,
    grouped_arguments,
    ids_of,
    shuffled_and_straight,
)  # fmt: skip
from tests.pointwise_cases import poisoned, randn, worst_row_error
from tests.unit.kernels.implementations import DTYPES, REFERENCE, TORCH, TRITON

ALL = pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON])
# Two roundings of a 16-bit result, the order of a float32 sum.
LIMIT = {torch.float32: 4, torch.bfloat16: 1.5, torch.float16: 1.5}


@ALL
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(1, 8, 2), (37, 8, 2), (5, 60, 4), (9, 3, 3), (0, 8, 2)]
)
def test_routing(tokens, experts, top_k, renormalize, dtype, impl):
    logits_TE = randn(tokens, experts, dtype=dtype, scale=2.0)
    weights_TK, ids_TK = kernels.topk_softmax(logits_TE, top_k, renormalize, impl=impl)
    expected_weights, expected_ids = chosen(logits_TE, top_k, renormalize)
    assert (weights_TK.dtype, ids_TK.dtype) == (torch.float32, torch.int32)
    assert weights_TK.is_contiguous()
    assert ids_TK.is_contiguous()
    assert torch.equal(ids_TK.long(), expected_ids)
    torch.testing.assert_close(weights_TK.double(), expected_weights, rtol=1e-6, atol=0)


@ALL
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("renormalize", [True, False])
def test_routing_with_scales(renormalize, dtype, impl):
    """That of the logits is part of the softmax, that of an expert multiplies what is renormalised."""
    logits_TE, scale_E = randn(19, 60, dtype=dtype, scale=4.0), randn(60, dtype=dtype, seed=1)
    weights_TK, ids_TK = kernels.topk_softmax(logits_TE, 8, renormalize, 0.125, scale_E, impl=impl)
    plain_TK, expected_ids = chosen(logits_TE.double() * 0.125, 8, renormalize)
    assert torch.equal(ids_TK.long(), expected_ids)
    torch.testing.assert_close(
        weights_TK.double(), plain_TK * scale_E.double()[expected_ids], rtol=2e-6, atol=0
    )
    assert weights_TK.dtype == torch.float32


@ALL
def test_ties_fall_to_the_lowest_id(impl):
    logits_TE = torch.tensor([[0.0, 1, 1, 1], [2, 2, 2, 2], [-0.0, 0.0, 0.0, -1]])
    _, ids_TK = kernels.topk_softmax(logits_TE, 2, True, impl=impl)
    assert ids_TK.tolist() == [[1, 2], [0, 1], [0, 1]]


@ALL
def test_the_choice_survives_probabilities_that_underflow(impl):
    logits_TE = torch.tensor([[-300.0, 0.0, -200.0, -250.0]])
    weights_TK, ids_TK = kernels.topk_softmax(logits_TE, 3, True, impl=impl)
    assert ids_TK.tolist() == [[1, 2, 3]]
    assert weights_TK.tolist() == [[1.0, 0.0, 0.0]]


@ALL
def test_ids_are_valid_whatever_the_logits(impl):
    """Padding rows of a decode graph hold anything; an id out of range would read foreign memory."""
    inf, nan = torch.inf, torch.nan
    logits_TE = torch.tensor([[nan] * 4, [-inf] * 4, [nan, 1.0, nan, 2.0], [inf, inf, nan, -inf]])
    _, ids_TK = kernels.topk_softmax(logits_TE, 3, True, impl=impl)
    assert all(len(set(row)) == 3 and set(row) <= set(range(4)) for row in ids_TK.tolist())
    assert ids_TK[2].tolist() == [3, 1, 0]


def test_routing_wants_a_sensible_number_of_experts():
    with pytest.raises(ValueError, match="between 1 and the 4 experts"):
        kernels.topk_softmax(torch.ones(1, 4), 5, True)


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
@pytest.mark.parametrize("shape", [*SHAPES, Shape(1100, 8, 2)], ids=str)
def test_alignment(shape, impl):
    ids_TK = ids_of(shape)
    with poisoned():
        order_S, starts_E1 = kernels.moe_align(ids_TK, shape.experts, impl=impl)
    expected_order, expected_starts = aligned(ids_TK, shape.experts)
    assert (order_S.dtype, starts_E1.dtype) == (torch.int32, torch.int32)
    assert torch.equal(order_S, expected_order)
    assert torch.equal(starts_E1, expected_starts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, pytest.param("parts", id="parts"), TRITON])
def test_a_product_and_its_activation(shape, activation, dtype, impl):
    """What the product and then the activation give, to a rounding of either."""
    x, weight, order, starts, _ = grouped_arguments(shape, dtype, True, False)
    weight = torch.cat((weight, weight.flip(1)), 1)
    with poisoned():
        y_SF = kernels.grouped_linear_glu(x, weight, order, starts, activation, impl=impl)
    product_S2F = kernels.grouped_linear(x.double(), weight.double(), order, starts, impl="reference")
    exact_SF = kernels.glu(product_S2F, activation, impl="reference")
    assert y_SF.dtype == dtype
    assert y_SF.is_contiguous()
    assert worst_row_error(y_SF, exact_SF) <= (16 if dtype == torch.float32 else 3) * torch.finfo(dtype).eps


@ALL
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("is_shared", "is_weighted"), [(True, False), (False, True)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grouped_linear(shape, is_shared, is_weighted, dtype, impl):
    args = grouped_arguments(shape, dtype, is_shared, is_weighted)
    with poisoned():
        y_SN = kernels.grouped_linear(*args, impl=impl)
    assert y_SN.dtype == dtype
    assert y_SN.shape == (shape.tokens * shape.top_k, shape.outputs)
    error = worst_row_error(y_SN, grouped_answer(shape, args[0], args[1], args[4]))
    assert error <= LIMIT[dtype] * torch.finfo(dtype).eps


@ALL
def test_experts_without_tokens_are_not_read(impl):
    shape = Shape(5, 4, 2, experts_used=2)
    x, weight, *rest = grouped_arguments(shape, torch.float32, True, False)
    weight[2:] = torch.nan
    assert kernels.grouped_linear(x, weight, *rest, impl=impl).isfinite().all()


@pytest.mark.parametrize("impl", [REFERENCE, TRITON])
def test_shuffled_tokens_give_shuffled_rows(impl):
    """Bit for bit on a GPU (tests/gpu/test_moe_kernels.py); here a library multiplies, which may sum a row
    in another order where it lies elsewhere in a tile."""
    shuffled, straight = shuffled_and_straight(impl, torch.float32, "cpu")
    torch.testing.assert_close(shuffled, straight, rtol=0, atol=1e-5)


def test_rows_must_be_shared_evenly():
    x, weight, order, starts, _ = grouped_arguments(Shape(5, 4, 2), torch.float32, True, False)
    with pytest.raises(ValueError, match="10 slots cannot share 3 rows"):
        kernels.grouped_linear(x[:3], weight, order, starts)


@ALL
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "slots", "dim"), [(1, 2, 64), (5, 3, 33), (3, 1, 1100), (0, 2, 8)])
def test_sum(tokens, slots, dim, dtype, impl):
    x_TKD = randn(tokens, slots, dim, dtype=dtype)
    with poisoned():
        y_TD = kernels.moe_sum(x_TKD, impl=impl)
    assert y_TD.dtype == dtype
    assert worst_row_error(y_TD, x_TKD.double().sum(1)) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("counts", [[0, 0, 5], [1, 1, 1], [17, 0, 64], [128, 129, 1], [0, 0, 0]])
@pytest.mark.parametrize("tile_m", [tile.m for _, tile in TILES])
def test_the_grid_has_room_for_every_tile(counts, tile_m):
    tiles = sum(-(-count // tile_m) for count in counts)
    assert tiles <= most_row_tiles(sum(counts), len(counts), tile_m)


def test_tiles_grow_with_the_rows_of_an_expert():
    slots_of = {16: (2, 32), 32: (33, 128), 64: (129, 512), 128: (513, 16384)}
    for rows, slots in slots_of.items():
        assert [tile_for(count, 8).m for count in slots] == [rows, rows]


def calls() -> dict[str, tuple]:
    shape = Shape(5, 4, 2)
    ids_TK = ids_of(shape)
    return {
        "topk_softmax": (randn(5, 4, dtype=torch.float32), 2, True),
        "moe_align": (ids_TK, 4),
        "grouped_linear": grouped_arguments(shape, torch.float32, False, True),
        "moe_sum": (randn(5, 2, 24, dtype=torch.float32),),
    }


@pytest.mark.parametrize("kernel", calls())
def test_operators_agree_with_their_schema_and_fake(kernel):
    op = getattr(torch.ops.fastkernels, kernel).default
    torch.library.opcheck(op, calls()[kernel], test_utils=("test_schema", "test_faketensor"))


def test_a_block_compiles_whole():
    block = SparseMoE(4, 2, 32, 48)
    random_weights(block, 0)
    x_TD = randn(7, 32, dtype=torch.float32)
    with torch.no_grad():
        compiled = torch.compile(block, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x_TD), block(x_TD))
