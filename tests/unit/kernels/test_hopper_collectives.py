"""What Triton makes of the exchanges for Hopper, compiled without a GPU: 16 bytes a thread to and from other
GPUs' memory, loads that no cache answers, nothing spilled."""

import re

import pytest
import triton.language as tl

from fastkernels.kernels import all_reduce_norm_triton, ep_exchange_triton, exchange_triton, symmetric
from fastkernels.kernels.policy import interpreting
from tests.unit.kernels import hopper

pytestmark = [
    pytest.mark.skipif(interpreting(), reason="the interpreter compiles nothing"),
    pytest.mark.usefixtures("own_cache"),
]
SHARED = {"bases": "*i64", "epochs": "*i32"}
ALWAYS = {"MOST_PROGRAMS": symmetric.MOST_PROGRAMS, "FLOAT": tl.bfloat16, "OVERLAPS": True}


def check(kernel, types, constants, num_warps: int) -> list[str]:
    """Its accesses of global memory, of which those that wait are not cached."""
    divisible = ("count", "total", "slot")
    made = hopper.compiled(kernel, types | SHARED, constants | ALWAYS, {"num_warps": num_warps}, divisible)
    assert ".local" not in made.asm["ptx"]
    assert "multimem" not in made.asm["ptx"]
    return re.findall(r"(?:ld|st)\.[\w.:]*global[\w.:]*", made.asm["ptx"])


@pytest.mark.parametrize(("splits", "adds"), [(False, True), (True, True), (False, False), (True, False)])
def test_exchange(splits, adds):
    tile = exchange_triton.TILES[-1][1]
    constants = {"RANKS": 4, "SPLITS": splits, "ADDS": adds, "TILE": tile.bytes // 2, "LAG": tile.lag}
    accesses = check(exchange_triton._kernel, {"x": "*i16", "y": "*i16"}, constants, tile.num_warps)
    assert "ld.volatile.global.v4.b32" in accesses
    assert not any("16" in access for access in accesses), "element by element"


def test_all_reduce_norm():
    types = {"x": "*i16", **dict.fromkeys(("residual", "weight", "y", "total"), "*bf16"), "eps": "fp32"}
    constants = {"RANKS": 4, "D": 8192, "WIDTH": 8192, "LAG": 1}
    accesses = check(all_reduce_norm_triton._kernel, types, constants, 16)
    assert "ld.volatile.global.v4.b32" in accesses
    assert not any("16" in access for access in accesses), "element by element"


@pytest.mark.parametrize("name", ["_dispatch", "_combine"])
def test_experts(name):
    types = {"x": "*i16", "y": "*i16", "ids": "*i32", "received": "*i32"}
    constants = {"RANKS": 4, "K": 8, "CHOICES": 8, "D": 7168, "WIDTH": 8192}
    accesses = check(getattr(ep_exchange_triton, name), types, constants, 16)
    assert accesses.count("ld.volatile.global.v4.b32") >= 4
