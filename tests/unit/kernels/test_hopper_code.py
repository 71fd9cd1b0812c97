"""What Triton makes of the row-wise kernels for Hopper, compiled without a GPU: 16-byte accesses, nothing
spilled.
"""

import re

import pytest
import torch
import triton

from fastkernels.kernels import activation_triton as activation
from fastkernels.kernels import causal_conv1d_triton as causal_conv1d
from fastkernels.kernels import gated_rms_norm_triton as gated_rms_norm
from fastkernels.kernels import gemv, linear_gemv, linear_glu_gemv, skinny
from fastkernels.kernels import glu_triton as glu
from fastkernels.kernels import layer_norm_triton as layer_norm
from fastkernels.kernels import linear_glu_triton as linear_glu
from fastkernels.kernels import linear_triton as linear
from fastkernels.kernels import resize_grid_triton as resize_grid
from fastkernels.kernels import rms_norm_triton as rms_norm
from fastkernels.kernels import rope_store_kv_triton as rope_store_kv
from fastkernels.kernels import sample_grid_triton as sample_grid
from fastkernels.kernels import softmax_triton as softmax
from fastkernels.kernels.dense_attention import triton as dense_attention
from fastkernels.kernels.gla import chunks
from fastkernels.kernels.gla import triton as gla
from fastkernels.kernels.launch import warps
from fastkernels.kernels.policy import interpreting
from fastkernels.kernels.rope import triton as rope
from fastkernels.kernels.rwkv7 import chunks as rwkv7_chunks
from fastkernels.kernels.rwkv7 import triton as rwkv7
from fastkernels.kernels.rwkv7_heads import step as rwkv7_step
from fastkernels.kernels.sample import narrowing
from fastkernels.kernels.selective_scan import triton as selective_scan
from fastkernels.kernels.ssd_scan import triton as ssd_scan
from tests.unit.kernels.hopper import MOST_SHARED, compiled

pytestmark = [
    pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing"),
    pytest.mark.usefixtures("own_cache"),
]


def ptx(kernel, types: dict[str, str], constants: dict, elements: int, options: dict | None = None) -> str:
    return compiled(kernel, types, constants, options or warps(elements)).asm["ptx"]


def check(code: str, scalar: str = "") -> None:
    """Every access to global memory moves 16 bytes a thread, but for scalar loads of the given type."""
    assert accesses(code) - {f"ld.global.{scalar}"} == {"ld.global.v4.b32", "st.global.v4.b32"}


def accesses(code: str) -> set[str]:
    """Kinds of access to global memory, where there are none to local memory."""
    assert ".local" not in code
    return set(re.findall(r"(?:ld|st)\.global[\w.:]*", code))


BF16_NAMES = ("x", "residual", "weight", "bias", "y", "total", "q", "k", "q_out", "k_out")
BF16_ROWS = dict.fromkeys(BF16_NAMES, "*bf16")


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("dim", "rows"), [(4096, 1), (14336, 1), (16384, 1), (128, 8)])
def test_rms_norm(dim, rows, add):
    width = triton.next_power_of_2(dim)
    inner = {} if rows > 1 else {"x_inner": 1, "r_inner": 1}
    constants = {"D": dim, "ADD": add, "ROWS": rows, "WIDTH": width, **inner}
    check(ptx(rms_norm._normalise_rows, {**BF16_ROWS, "eps": "fp32"}, constants, rows * width))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_glu(activation):
    constants = {"inner": 1, "F": 14336, "ACTIVATION": activation, "ROWS": 2, "WIDTH": 1024}
    check(ptx(glu._gate_rows, BF16_ROWS, constants, 2048))


def test_softmax():
    check(ptx(softmax._softmax_rows, BF16_ROWS, {"inner": 1, "D": 4096, "ROWS": 1, "WIDTH": 4096}, 4096))
    logits = {"x": "*fp32", "y": "*fp32"}
    check(
        ptx(softmax._softmax_stream, logits, {"inner": 1, "D": 128256, "BLOCK": softmax.STREAM_BLOCK}, 8192)
    )


def test_softmax_in_parts():
    """Rows move 16 bytes a thread; what is known of each part is one number."""
    few = {"inner": 1, "D": 128256, "BLOCK": 1024}
    partial = {"x": "*fp32", "highest": "*fp32", "total": "*fp32"}
    assert accesses(ptx(softmax._part_of_row, partial, few, 1024)) == {"ld.global.v4.b32", "st.global.b32"}
    code = ptx(softmax._softmax_part, {**partial, "y": "*fp32"}, {**few, "SLOTS": 128}, 1024)
    assert accesses(code) - {"ld.global.b32"} == {"ld.global.v4.b32", "st.global.v4.b32"}


def test_allowed_ids():
    """Each pass over a row keeps its sums in registers."""
    types = {
        "logits": "*fp32", "temperature": "*fp32", "top_k": "*i32", "top_p": "*fp32", "last_logit": "*fp32",
        "last_id": "*i64",
    }  # fmt: skip
    constants = {"V": 128256, "TOP_K": True, "TOP_P": True, "BLOCK": narrowing.BLOCK}
    code = ptx(narrowing._last_allowed, types, constants, 0, {"num_warps": narrowing.WARPS})
    assert "ld.global.v4.b32" in accesses(code)


def check_skinny(kernel, rows: int, inputs: int, outputs: int, y: str = "*bf16", **constants) -> None:
    """Weights are on their way to L2 before the kernel waits for the one before it, go to shared memory by 16
    bytes a thread, several tiles ahead, and to the tensor cores. Two programs have room on a processor if
    there are more programs than processors, else one."""
    tile = skinny.tile_of(rows, inputs, outputs, 132)
    constants |= {
        "K": inputs, "N": outputs, "ROWS": max(16, rows), "OUTPUTS": tile.outputs, "INPUTS": tile.inputs,
        "SPLITS": tile.splits, "STAGES": tile.stages, "EVEN": inputs % (tile.inputs * tile.splits) == 0,
        "OVERLAPS": True, "AHEAD": tile.ahead, "PIECES": 32 * tile.warps // tile.outputs, "bias": None,
        **({} if tile.splits > 1 else {"partial": None}),
    }  # fmt: skip
    types = {**BF16_ROWS, "y": y, "partial": "*fp32", "counters": "*i32"}
    options = {"num_warps": tile.warps, "launch_pdl": True}
    made = compiled(kernel, types, constants, options)
    before, _, after = made.asm["ptx"].partition("griddepcontrol.wait")
    assert "cp.async.bulk.prefetch.L2" in before
    assert not re.search(r"cp\.async\.c[ag]|(?:ld|st)\.global", before)
    assert "cp.async.cg.shared.global" in after
    assert "wgmma.mma_async" in after if tile.outputs >= 64 else "mma.sync" in after
    assert ".local" not in after
    tiles, splits = skinny.grid(outputs, tile)
    two_fit = 2 * made.metadata.shared <= MOST_SHARED
    assert two_fit == (tiles * splits > 132), (
        "two on a processor if and only if there are more than processors"
    )
    if tile.splits > 1:
        # Stores, the barrier, the count, the barrier that hands it out, loads past L1.
        found = re.findall(r"st\.global\.v4|bar\.sync|atom\.global\.gpu\.acq_rel|ld\.global\.cg\.v4", after)
        count = found.index("atom.global.gpu.acq_rel")
        assert found[count - 2 : count + 3] == [
            "st.global.v4", "bar.sync", "atom.global.gpu.acq_rel", "bar.sync", "ld.global.cg.v4"
        ]  # fmt: skip


@pytest.mark.parametrize(("outputs", "inputs"), [(6144, 4096), (28672, 4096), (4096, 14336)])
@pytest.mark.parametrize("rows", [1, 16, 32])
def test_linear(rows, inputs, outputs):
    check_skinny(linear._multiply, rows, inputs, outputs, ACTIVATION=None)


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_linear_activation(activation, rows):
    check_skinny(linear._multiply, rows, 1280, 5120, ACTIVATION=activation)


@pytest.mark.parametrize("rows", [1, 16, 32])
def test_linear_float32(rows):
    check_skinny(linear._multiply, rows, 4096, 128256, y="*fp32", ACTIVATION=None)


@pytest.mark.parametrize(("rows", "outputs"), [(1, 28672), (8, 2048), (16, 28672), (32, 28672), (32, 4096)])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_linear_glu(rows, outputs, activation):
    check_skinny(linear_glu._multiply, rows, 4096, outputs, ACTIVATION=activation)


def gemv_code(kernel, tile: gemv.Tile, y: str = "*bf16", **constants) -> tuple[set[str], set[str]]:
    """Accesses to global memory before and after the wait for the kernel ahead."""
    fixed = {"bias": None, "INPUTS": tile.inputs, "OVERLAPS": True}
    options = {"num_warps": tile.warps, "launch_pdl": True}
    code = compiled(kernel, {**BF16_ROWS, "y": y}, {**fixed, **constants}, options).asm["ptx"]
    assert ".local" not in code
    before, wait, after = code.partition("griddepcontrol.wait")
    assert wait
    assert "griddepcontrol.launch_dependents" in before
    return accesses(before), accesses(after)


X = "ld.global.v4.b32"
WEIGHT = "ld.global.L1::evict_first.L2::cache_hint.v4.b32"
ANSWER = "st.global.b16"


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_linear_on_cuda_cores(activation):
    """A parameter's first tile is loaded before the kernel waits for the one before it, all of x after; by 16
    bytes a thread, tails too."""
    kernel, tile = linear_gemv._multiply, gemv.TILE
    same = {"OUTPUTS": tile.outputs, "ACTIVATION": activation}
    early = gemv_code(kernel, tile, EVEN=True, EARLY=True, **same)
    assert early == ({WEIGHT}, {WEIGHT, X, ANSWER})
    late = gemv_code(kernel, tile, EVEN=True, EARLY=False, **same)
    assert late == (set(), {WEIGHT, X, ANSWER})
    tail = gemv_code(kernel, tile, EVEN=False, EARLY=True, K=3 * tile.inputs - 256, **same)
    assert tail == early
    unrounded = gemv_code(kernel, tile, y="*fp32", EVEN=True, EARLY=True, **same)
    assert unrounded == ({WEIGHT}, {WEIGHT, X, "st.global.b32"})


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_linear_glu_on_cuda_cores(activation):
    tile = gemv.TILE
    constants = {"PAIRS": tile.outputs // 2, "ACTIVATION": activation, "EVEN": True, "EARLY": True}
    assert gemv_code(linear_glu_gemv._multiply, tile, **constants) == ({WEIGHT}, {WEIGHT, X, ANSWER})


@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
def test_rope(integer):
    bits = 8 * integer.itemsize
    types = {**BF16_ROWS, "cos_sin": "*fp32", "positions": f"*i{bits}"}
    constants = {"position_stride": 1, "H": 32, "J": 8, "K": 128, "R": 128, "HEADS": 8, "HALF": 64, "REST": 0}
    check(ptx(rope._rope, types, constants, 1024), scalar=f"b{bits}")


def test_rope_store_kv():
    """Into the cache, too, 16 bytes a thread."""
    types = {**dict.fromkeys(("q", "k", "v", "q_out", "k_cache", "v_cache"), "*bf16"), "cos_sin": "*bf16",
             "positions": "*i64", "slots": "*i64"}  # fmt: skip
    constants = {"position_stride": 1, "slot_stride": 1, "H": 32, "J": 8, "K": 128, "R": 128, "P": 16,
                 "HEADS": 8, "HALF": 64, "REST": 0, "WIDTH": 128}  # fmt: skip
    check(ptx(rope_store_kv._rope_store, types, constants, 1024), scalar="b64")


@pytest.mark.parametrize("kind", [{}, {"ADD": True}, {"ADD": True, "KEEPS": True}], ids=str)
@pytest.mark.parametrize(("dim", "rows"), [(1152, 1), (4096, 1), (128, 8)])
def test_layer_norm(dim, rows, kind):
    width = triton.next_power_of_2(dim)
    inner = {} if rows > 1 else {"x_inner": 1, "r_inner": 1}
    flags = dict.fromkeys(("ADD", "SCALED", "KEEPS"), False) | kind
    constants = {"D": dim, "ROWS": rows, "WIDTH": width, **inner, **flags}
    types = {**BF16_ROWS, "scale": "*bf16", "eps": "fp32"}
    check(ptx(layer_norm._normalise_rows, types, constants, rows * width))


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "log_sigmoid", "quick_gelu"])
def test_activation(name):
    types = {**BF16_ROWS, "factor": "fp32"}
    constants = {"inner": 1, "F": 4304, "NAME": name, "ROWS": 2, "WIDTH": 1024}
    check(ptx(activation._activate_rows, types, constants, 2048))


def test_resize_grid():
    types = {"table": "*bf16", "out": "*bf16", **dict.fromkeys(("y", "x", "heights", "widths"), "*i64")}
    code = ptx(resize_grid._resample, types, {"M": 16, "N": 16, "D": 1152, "WIDTH": 2048}, 2048)
    assert "ld.global.v4.b32" in code
    assert ".local" not in code


def test_sample_grid():
    types = {"table": "*bf16", "out": "*bf16", "places": "*fp32"}
    code = ptx(sample_grid._between, types, {"M": 48, "N": 48, "D": 1152, "WIDTH": 2048}, 2048)
    assert "ld.global.v4.b32" in code
    assert ".local" not in code


@pytest.mark.parametrize(("causal", "biased"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("head_dim", [64, 72, 128])
def test_dense_attention_uses_the_tensor_cores(head_dim, causal, biased):
    dims = max(16, triton.next_power_of_2(head_dim))
    queries, keys, _, stages = dense_attention.SHAPES[2, dims]
    types = {**dict.fromkeys(("query", "key", "value", "bias", "out"), "*bf16"), "scale": "fp32",
             **dict.fromkeys(("query_starts", "key_starts"), "*i32")}  # fmt: skip
    constants = {"H": 16, "K": head_dim, "M": queries, "TILE": keys, "DIMS": dims, "STAGES": stages,
                 "CAUSAL": causal, "BIAS": biased}  # fmt: skip
    code = ptx(dense_attention._attend, types, constants, 8 * 512)
    assert "wgmma.mma_async" in code
    assert ".local" not in code


def test_gated_rms_norm():
    types = {**BF16_ROWS, "gate": "*bf16", "eps": "fp32", "factor": "fp32"}
    constants = {"x_inner": 5, "g_inner": 5, "D": 512, "G": 1, "GATE_FIRST": False, "ROWS": 4, "WIDTH": 512}
    check(ptx(gated_rms_norm._gate_rows, types, constants, 2048))


OF_THE_DRIVER = 1024  # bytes of shared memory of each program on a multiprocessor
GLA_NAMES = ("query", "key", "value", "gate", "out", "read", "kept", "weights")
GLA = {"decay": "*fp32", "state": "*fp32", "rows": "*i64", "starts": "*i32", "scale": "fp32"}
GLA_SIZES = {"H": 5, "K": 256, "V": 512, "DIMS": 256}
NO_GATE = {"gate": None, "g_stride_t": 0, "g_stride_h": 0, "LEVELS": 0}  # retention


def gla_code(kernel, dtype: torch.dtype, options: dict, **constants):
    name = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    constants |= {**GLA_SIZES, "PRECISION": gla.PRECISION[dtype], "FLUSHES": True, "OVERLAPS": True}
    constants = {n: value for n, value in constants.items() if n in kernel.arg_names}
    return compiled(kernel, {**GLA, **dict.fromkeys(GLA_NAMES, f"*{name}")}, constants, options)


@pytest.mark.parametrize("gate", [{}, NO_GATE], ids=["gated", "retention"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gla_within_chunks(dtype, gate):
    """At the real model's size: what is known of a chunk moves in vectors; six programs fit on a
    multiprocessor."""
    tile, is_half = gla.TILES[dtype.itemsize], dtype.itemsize == 2
    options = {
        "num_warps": tile.within_warps, "num_stages": tile.within_stages, "maxnreg": tile.within_registers
    }  # fmt: skip
    sizes = {"C": tile.chunk, "LEVELS": tile.chunk.bit_length() - 1, "SLICE": tile.slice} | gate
    made = gla_code(chunks._within, dtype, options, **sizes)
    code = made.asm["ptx"]
    assert ".local" not in code
    assert "st.global.v4.b32" in accesses(code)
    assert ("mma.sync" in code) == is_half
    assert 6 * (made.metadata.shared + OF_THE_DRIVER) <= MOST_SHARED + OF_THE_DRIVER


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gla_across_chunks(dtype):
    """Chunks are on their way to shared memory ahead of the products, all of which go to wgmma; two programs
    fit on a multiprocessor; states move by 16 bytes. Products of float32 are not rounded."""
    tile, is_half = gla.TILES[dtype.itemsize], dtype.itemsize == 2
    options = {"num_warps": gla._warps(256 * tile.columns, tile.elements_of_a_warp)}
    made = gla_code(chunks._across, dtype, options, C=tile.chunk, COLUMNS=tile.columns, STAGES=tile.stages)
    code = made.asm["ptx"]
    assert ".local" not in code
    assert ("wgmma.mma_async" in code) == ("cp.async.cg.shared.global" in code) == is_half
    assert "mma.sync" not in code
    assert {"ld.global.v4.b32", "st.global.v4.b32"} <= accesses(code)
    assert 2 * (made.metadata.shared + OF_THE_DRIVER) <= MOST_SHARED + OF_THE_DRIVER


@pytest.mark.parametrize("gate", [{}, NO_GATE], ids=["gated", "retention"])
def test_gla_step(gate):
    """Waits for the kernel ahead before it reads; the state moves by 16 bytes."""
    columns = gla.STEP_COLUMNS
    warps_of_it = gla._warps(256 * columns, gla.STEP_ELEMENTS_OF_A_WARP)
    options = {"num_warps": warps_of_it, "launch_pdl": True}
    code = gla_code(gla._step, torch.bfloat16, options, COLUMNS=columns, **gate).asm["ptx"]
    before, wait, after = code.partition("griddepcontrol.wait")
    assert wait
    assert not accesses(before)
    assert {"ld.global.v4.b32", "st.global.v4.b32"} <= accesses(after)


MAMBA = {
    **dict.fromkeys(("x", "y", "weight", "bias", "u", "delta", "b_in", "c_out", "z", "d"), "*bf16"),
    **dict.fromkeys(("state", "a_log"), "*fp32"),
    "rows": "*i64",
    "starts": "*i32",
}


@pytest.mark.parametrize("name", ["_tile", "_step"])
def test_causal_conv1d(name):
    """At the real model's size. Weights lie K apart, so their loads are small; tokens move in vectors."""
    kernel = getattr(causal_conv1d, name)
    block = causal_conv1d.CHANNELS if name == "_tile" else causal_conv1d.STEP_CHANNELS
    sizes = {"C": 8192, "K": 4, "HAS_BIAS": True, "M": causal_conv1d.TOKENS, "BLOCK": block, "OVERLAPS": True}
    constants = {n: value for n, value in sizes.items() if n in kernel.arg_names}
    code = ptx(kernel, MAMBA, constants, 0, {"num_warps": 4})
    assert ".local" not in code
    stores = set(re.findall(r"st\.global[\w.:]*", code))
    assert stores == (
        {"st.global.v4.b32", "st.global.b32"} if name == "_tile" else {"st.global.v2.b32", "st.global.b32"}
    )
    # The old state is read before the new one is written, by whichever thread.
    assert name == "_step" or code.rindex("bar.sync") > code.rindex("st.global.v4.b32")


@pytest.mark.parametrize("name", ["_walk", "_step"])
def test_selective_scan(name):
    """At the real model's size: states stay in registers."""
    kernel = getattr(selective_scan, name)
    block = selective_scan.BLOCK if name == "_walk" else selective_scan.STEP_BLOCK
    elements = 16 * block * (selective_scan.CHUNK if name == "_walk" else 1)
    sizes = {
        "CHANNELS": 8192,
        "N": 16,
        "L": selective_scan.CHUNK,
        "BLOCK": block,
        "VALUES": 16,
        "OVERLAPS": True,
    }
    constants = {n: value for n, value in sizes.items() if n in kernel.arg_names}
    code = ptx(kernel, MAMBA, constants, 0, {"num_warps": selective_scan.warps(elements)})
    assert ".local" not in code
    assert re.search(r"ld\.global[\w.:]*v[24]\.b32", code)


SSD = {**MAMBA, **dict.fromkeys(("x_in", "dt"), "*bf16")}
SSD_SIZES = {"H": 128, "SHARED": 16, "P": 64, "N": 128, "VALUES": 128}


def test_ssd_scan():
    """At the real model's size: chunks come ahead, all products go to wgmma, one program has room."""
    constants = {**SSD_SIZES, "L": ssd_scan.CHUNK[2], "COLUMNS": ssd_scan.COLUMNS[2], "PRECISION": "tf32"}
    made = compiled(ssd_scan._walk, SSD, constants, {"num_warps": ssd_scan.WARPS[2]})
    code = made.asm["ptx"]
    assert ".local" not in code
    assert "wgmma.mma_async" in code
    assert "mma.sync" not in code
    assert "cp.async.cg.shared.global" in code
    assert made.metadata.shared + OF_THE_DRIVER <= MOST_SHARED


def test_ssd_step():
    """Waits for the kernel ahead before it reads; the state moves by 16 bytes."""
    constants = {**SSD_SIZES, "COLUMNS": ssd_scan.STEP_COLUMNS, "OVERLAPS": True}
    warps_of_it = 128 * ssd_scan.STEP_COLUMNS // ssd_scan.STEP_ELEMENTS_OF_A_WARP
    options = {"num_warps": warps_of_it, "launch_pdl": True}
    code = compiled(ssd_scan._step, SSD, constants, options).asm["ptx"]
    before, wait, after = code.partition("griddepcontrol.wait")
    assert wait
    assert not accesses(before)
    assert {"ld.global.v4.b32", "st.global.v4.b32"} <= accesses(after)


RWKV7_NAMES = ("receptance", "log_decay", "key", "value", "removal", "rate", "read", "out", "move", "y")
RWKV7 = {**dict.fromkeys(RWKV7_NAMES, "*bf16"), **dict.fromkeys(("add", "last", "state"), "*fp32")}
RWKV7 |= {"rows": "*i64", "starts": "*i32"}
RWKV7_SIZES = {"H": 40, "K": 64, "V": 64, "C": 64, "DIMS": 64, "WIDTH": 64, "PRECISION": "tf32"}


@pytest.mark.parametrize("name", ["_within", "_across"])
def test_rwkv7_chunks(name):
    """At the real model's size: all products go to wgmma, two programs fit on a multiprocessor, and those
    across chunks have the next ones on their way."""
    kernel, tile = getattr(rwkv7_chunks, name), rwkv7.TILES[2]
    is_within = name == "_within"
    sizes = {"LEVELS": 6} if is_within else {"COLUMNS": tile.columns, "STAGES": tile.stages}
    warps_of_it = tile.within_warps if is_within else tile.across_warps
    made = compiled(kernel, RWKV7, {**RWKV7_SIZES, **sizes}, {"num_warps": warps_of_it})
    code = made.asm["ptx"]
    assert ".local" not in code
    assert "wgmma.mma_async" in code
    assert "mma.sync" not in code
    assert ("cp.async.cg.shared.global" in code) != is_within
    assert 2 * (made.metadata.shared + OF_THE_DRIVER) <= MOST_SHARED + OF_THE_DRIVER


def test_rwkv7_step_of_a_layer():
    """Waits for the kernel ahead before it reads; weights and the state move by 16 bytes."""
    constants = {"H": 40, "K": 64, "W": 96, "A": 96, "G": 320, "V": 64, "WIDTH": 64, "OVERLAPS": True}
    constants |= {"COLUMNS": rwkv7_step.COLUMNS}
    types = dict.fromkeys(rwkv7_step._step.arg_names[:15], "*bf16")
    types |= {"state": "*fp32", "rows": "*i64", "y": "*bf16", "eps": "fp32"}
    options = {"num_warps": rwkv7_step.WARPS, "launch_pdl": True}
    code = compiled(rwkv7_step._step, types, constants, options).asm["ptx"]
    before, wait, after = code.partition("griddepcontrol.wait")
    assert wait
    assert not accesses(before)
    assert {"ld.global.v4.b32", "st.global.v4.b32"} <= accesses(after)
