"""bitnet_linear: every implementation on this machine against products of whole numbers."""

import re

import pytest
import torch

from fastkernels import kernels
from fastkernels.errors import KernelError
from fastkernels.kernels import bitnet_linear_gemv as gemv
from fastkernels.kernels import bitnet_linear_triton as tiled
from fastkernels.kernels import counters, ternary
from fastkernels.kernels.policy import interpreting
from tests.pointwise_cases import bitnet_linear_cases, check
from tests.unit.kernels.hopper import MOST_SHARED, compiled
from tests.unit.kernels.implementations import DTYPES, GEMV, REFERENCE, TORCH, TRITON, TRITON_DTYPE

INT_MM = pytest.param("int_mm", id="int_mm")
# Three matrices in one, inputs that end within a tile, outputs that end within a program's, tiles of every
# number of tokens.
CASES = bitnet_linear_cases(
    [(1, 80, [80, 16, 16]), (5, 300, [112]), (17, 192, [64, 32]), (40, 72, [40]), (130, 100, [80]),
     (0, 32, [16])]
)  # fmt: skip
EIGHTS = [case for case in CASES if case.name in ("T17-K192-N96", "T40-K72-N40")]
SPLIT = bitnet_linear_cases([(1, 2100, [32, 16]), (16, 1100, [40]), (30, 1024, [64])])[:-1]
ONE_ROW = bitnet_linear_cases([(1, 4096, [8]), (1, 2100, [20, 4]), (1, 80, [80, 16, 16]), (0, 8, [4])])[:-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [REFERENCE, TORCH])
def test_against_whole_numbers(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", EIGHTS, ids=str)
@pytest.mark.parametrize("impl", [INT_MM])
def test_products_of_bytes_against_whole_numbers(case, impl):
    check(case, torch.bfloat16, impl)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_tiles_against_whole_numbers(case, impl, dtype):
    check(case, dtype, impl)


@pytest.mark.parametrize("case", SPLIT, ids=str)
@pytest.mark.parametrize("impl", [TRITON])
def test_split_inputs_against_whole_numbers(case, impl, monkeypatch):
    """Every call finds the counters at 0 and leaves them so."""
    monkeypatch.setattr(tiled, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(counters, "_of_stream", {})
    check(case, TRITON_DTYPE, impl)
    (used,) = counters._of_stream.values()
    assert not used.any()


@pytest.mark.parametrize("case", ONE_ROW, ids=str)
@pytest.mark.parametrize("impl", [GEMV])
def test_one_row_against_whole_numbers(case, impl):
    check(case, TRITON_DTYPE, impl)


@pytest.mark.parametrize("impl", [TORCH, INT_MM, TRITON, GEMV])
def test_sums_are_exact(impl):
    """Scales of 1: the largest and smallest sums that there are, and those of random codes."""
    rows = 1 if impl == "gemv" else 20
    x_TK = torch.randint(-127, 128, (rows, 6912), generator=torch.Generator().manual_seed(0))
    x_TK[:, 0] = 127
    x_TK[0] = 127
    values_NK = torch.randint(-1, 2, (8, 6912), generator=torch.Generator().manual_seed(1))
    values_NK[0], values_NK[1] = 1, -1
    # float16 has all sums of two bytes; larger ones are rounded to it.
    dtype = torch.float32 if impl != "gemv" else torch.float16
    y_TN = kernels.bitnet_linear(x_TK.to(dtype), ternary.pack(values_NK), torch.ones(1), [8], impl=impl)
    exact_TN = x_TK @ values_NK.T
    assert exact_TN.abs().max() == 127 * 6912
    assert torch.equal(y_TN, exact_TN.to(dtype))


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON, GEMV])
def test_halves_round_to_even(impl):
    """And a token's largest value decides, not the tensor's."""
    x_K = torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5])
    weight = ternary.pack(torch.cat([torch.eye(8), -torch.eye(8)]))
    y_N = kernels.bitnet_linear(x_K[None].half(), weight, torch.ones(1), [16], impl=impl)[0]
    codes = torch.tensor([127, 0, 2, 2, 0, -2, -2, 64]).half()
    assert torch.equal(y_N, torch.cat([codes, -codes]))


def test_what_roundings_could_decide_goes_the_other_way():
    """Codes within 127 roundings of a half, and no others; not a code of 127, which is a row's largest."""
    x_TK = torch.tensor([[127, 2.5, -2.5, 3.4999, 3.4, 7.0]])
    codes, scale = ternary.quantised(x_TK)
    assert codes.tolist() == [[127, 2, -2, 3, 3, 7]]
    with ternary.other_way(1e-6):
        others, same = ternary.quantised(x_TK)
    assert others.tolist() == [[127, 3, -3, 4, 3, 7]]
    assert torch.equal(scale, same)
    assert torch.equal(ternary.quantised(x_TK)[0], codes)


@pytest.mark.parametrize("impl", [REFERENCE, TORCH, TRITON, GEMV])
def test_rows_of_nothing_and_of_no_number(impl):
    weight = ternary.pack(torch.ones(4, 32))
    zeros = torch.zeros(1, 32).half()
    assert torch.equal(kernels.bitnet_linear(zeros, weight, torch.ones(1), [4], impl=impl), torch.zeros(1, 4))
    for value in (torch.nan, torch.inf):
        broken = zeros.clone()
        broken[0, 7] = value
        assert not kernels.bitnet_linear(broken, weight, torch.ones(1), [4], impl=impl).isfinite().any()


@pytest.mark.parametrize(
    ("weight", "omega", "sizes", "problem"),
    [
        (torch.zeros(4, 8), torch.ones(1), [16], "torch.float32: 16 outputs of 8 inputs are packed in uint8"),
        (torch.zeros(4, 9).byte(), torch.ones(1), [16], r"weight \[4, 9\] .* are packed in uint8 \[4, 8\]"),
        (torch.zeros(4, 8).byte(), torch.ones(2), [16], r"sizes \[16\] and 2 scales"),
        (torch.zeros(4, 8).byte(), torch.ones(2), [14, 2], "a multiple of 4 outputs"),
    ],
)
def test_what_does_not_fit_is_named(weight, omega, sizes, problem):
    with pytest.raises(ValueError, match=problem):
        kernels.bitnet_linear(torch.ones(1, 8), weight, omega, sizes)


def test_sums_that_could_round_are_refused():
    weight = torch.zeros(1, 2**17 + 1, dtype=torch.uint8)
    with pytest.raises(ValueError, match="131073 inputs: sums are exact up to 131072"):
        kernels.bitnet_linear(torch.ones(1, 2**17 + 1), weight, torch.ones(1), [4])


def test_products_of_bytes_decline_few_rows():
    with pytest.raises(KernelError, match="serves 17 rows or more, not 16"):
        kernels.bitnet_linear(torch.ones(16, 8), torch.zeros(2, 8).byte(), torch.ones(1), [8], impl="int_mm")


# ---------------------------------------------------------------- what Hopper runs

hopper = pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing")
TYPES = {"x": "*bf16", "y": "*bf16", "omega": "*fp32"}
QKV = {"STARTS": (0, 640, 800, 960), "P": 3, "ASSEMBLY": True, "OVERLAPS": True}


def innermost(code: str) -> str:
    """The loop over the inputs: from its label to the branch back."""
    for label in re.findall(r"^(\$L__BB\S+):", code, re.MULTILINE):
        after = code.split(f"{label}:", 1)[1]
        if back := re.search(rf"bra\S*\s+{re.escape(label)};", after):
            return after[: back.start()]
    raise AssertionError("no loop")


@hopper
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("tile", [tile for _, tile in tiled.TILES], ids=lambda tile: f"T{tile.tokens}")
def test_weights_stay_packed_until_they_are_operands(tile):
    types = TYPES | {"codes": "*i8", "scales": "*fp32", "sums": "*i32", "weight": "*u8"}
    constants = QKV | {
        "ROWS": tile.rows, "TOKENS": tile.tokens, "INPUTS": tile.inputs, "SPLITS": 1, "STAGES": tile.stages,
        "EVEN": True, "partial": None, "counters": None,
    }  # fmt: skip
    made = compiled(tiled._multiply, types, constants, {"num_warps": tile.warps, "launch_pdl": True})
    code = made.asm["ptx"]
    assert ".local" not in code
    assert made.metadata.shared <= MOST_SHARED
    assert "ld.global.b8" not in code, "bytes are copied 16 at a time"
    loop = innermost(code)
    assert "cp.async.cg.shared.global" in loop
    assert "st.shared" not in loop, "what is unpacked stays in registers"
    product = r"wgmma.mma_async\S*s32.s8.s8 \{[^}]*\}, \{" if tile.rows >= 64 else r"mma.sync\S*s32.s8.s8"
    assert re.search(product, loop), "weights are operands in registers"


@hopper
@pytest.mark.usefixtures("own_cache")
def test_one_row_multiplies_bytes():
    import triton.language as tl

    tile = gemv.TILE
    types = TYPES | {"x_fours": "*i64", "weight": "*i32"}
    constants = QKV | {
        "KIND": tl.bfloat16, "WIDTH": 4096, "ROWS": tile.rows, "WORDS": tile.words, "EARLY": True,
    }  # fmt: skip
    options = {"num_warps": tile.warps, "launch_pdl": True, "enable_fp_fusion": False}
    code = compiled(gemv._multiply, types, constants, options).asm["ptx"]
    assert ".local" not in code
    assert "dp4a.u32.s32" in code
    assert "fma.rn" not in code, "a product is rounded before its code is"
    weights = re.findall(r"ld\.global\S*evict_first\S*", code)
    assert {".v4.b32" in load for load in weights} == {True}


@hopper
@pytest.mark.usefixtures("own_cache")
def test_codes_are_rounded_from_products():
    types = TYPES | {"codes": "*i8", "scales": "*fp32", "sums": "*i32"}
    options = {"num_warps": 8, "launch_pdl": True, "enable_fp_fusion": False}
    made = compiled(tiled._quantise_rows, types, {"K": 2560, "WIDTH": 4096, "OVERLAPS": True}, options)
    assert "fma.rn" not in made.asm["ptx"]
