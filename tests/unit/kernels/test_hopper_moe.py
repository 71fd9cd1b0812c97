"""What Triton makes of the mixture-of-experts kernels for Hopper, compiled without a GPU: tensor-core
instructions, wide loads that run ahead, shared memory that an SM has, nothing spilled.
"""

import re

import pytest

from fastkernels.kernels import grouped_linear_triton as grouped
from fastkernels.kernels import moe_permute_triton as permute
from fastkernels.kernels import topk_softmax_triton as routing
from fastkernels.kernels.launch import warps
from fastkernels.kernels.policy import interpreting
from tests.unit.kernels import hopper

pytestmark = [
    pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing"),
    pytest.mark.usefixtures("own_cache"),
]


def compiled(kernel, types: dict[str, str], constants: dict, options: dict):
    """The kernel, which spills nothing."""
    made = hopper.compiled(kernel, types, constants, options)
    assert ".local" not in made.asm["ptx"]
    return made


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("sharing", "outputs", "inputs", "weighted"), [(2, 28672, 4096, False), (1, 4096, 14336, True)]
)
@pytest.mark.parametrize("tile", [tile for _, tile in grouped.TILES], ids=lambda tile: f"M{tile.m}")
def test_grouped_linear(tile, sharing, outputs, inputs, weighted, kind):
    types = dict.fromkeys(("x", "weight", "y"), f"*{kind}")
    types |= {"order": "*i32", "starts": "*i32", "slot_weights": "*fp32"}
    constants = {
        "R": sharing, "E": 8, "N": outputs, "K": inputs, "WEIGHTED": weighted, "EXPERTS": 8, "TILE_M": tile.m,
        "TILE_N": tile.n, "TILE_K": tile.k if kind == "bf16" else tile.k // 2, "TOGETHER": tile.together,
        "OVERLAPS": True,
    }  # fmt: skip
    if not weighted:
        constants["slot_weights"] = None
    made = compiled(
        grouped._multiply, types, constants, {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    )
    code = made.asm["ptx"]
    assert made.metadata.shared <= hopper.MOST_SHARED
    assert "cp.async.cg.shared.global" in code, "the weight is loaded ahead, 16 bytes a thread"
    if kind == "bf16":
        assert re.search("wgmma.mma_async" if tile.m >= 64 else "mma.sync", code)


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (128, 8)])
def test_topk_softmax(experts, top_k):
    constants = {
        "E": experts,
        "K": top_k,
        "RENORMALIZE": True,
        "ROWS": 4,
        "WIDTH": experts,
        "SLOTS": top_k,
        "OVERLAPS": True,
    }
    types = {"logits": "*bf16", "weights": "*fp32", "ids": "*i32", "logit_scale": "fp32"}
    for scale in ({"expert_scale": "*bf16"}, {}):
        absent = {} if scale else {"expert_scale": None}
        compiled(routing._choose, types | scale, constants | absent, warps(4 * experts))


def test_moe_align():
    types = dict.fromkeys(("ids", "order", "starts"), "*i32")
    compiled(permute._align, types, {"BLOCK": permute.LARGEST_BLOCK, "OVERLAPS": True}, {"num_warps": 4})


def test_moe_sum():
    constants = {"K": 2, "D": 4096, "WIDTH": permute.WIDEST_TILE, "OVERLAPS": True}
    made = compiled(permute._sum, {"x": "*bf16", "y": "*bf16"}, constants, warps(permute.WIDEST_TILE))
    accesses = set(re.findall(r"(?:ld|st)\.global[\w.:]*", made.asm["ptx"]))
    assert accesses == {"ld.global.v4.b32", "st.global.v4.b32"}
