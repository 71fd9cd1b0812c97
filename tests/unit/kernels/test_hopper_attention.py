"""The attention kernels in CUDA C++, without a GPU: what they decline, what fits, what is compiled."""

import ctypes
import re
import shutil
import subprocess
from typing import Any

import pytest
import torch

from fastkernels.kernels import hopper, registered
from fastkernels.kernels.decode_attention import hopper as decode
from fastkernels.kernels.hopper.sources import source
from fastkernels.kernels.prefill_attention import hopper as prefill
from tests.attention_case import attention_case
from tests.unit.kernels.hopper import MOST_SHARED

MODULES: dict[str, Any] = {"prefill_attention": prefill, "decode_attention": decode}
# Bytes: of decode outside its loop; of prefill's loading warps, with 32 registers beside three warpgroups.
SPILLED = {("decode_attention", 256): 64, ("prefill_attention", 64): 144}
MULTIPROCESSOR = 228 * 1024  # bytes of shared memory; a block takes 1 KiB more than it asks for


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(hopper, "nvrtc", lambda: ctypes.CDLL(None))


def reason(kernel: str = "prefill_attention", **facts: Any) -> str | None:
    facts = {"query_lens": [1, 1], "seq_lens": [9, 5], "head_dim": 128, "dtype": torch.bfloat16, **facts}
    case = attention_case(**facts)
    args: Any = case.decode_args if kernel == "decode_attention" else case.prefill_args
    return MODULES[kernel].unsupported(kernel, *(0 if a is None else a for a in args))


@pytest.mark.parametrize("kernel", ["prefill_attention", "decode_attention"])
def test_what_it_serves(kernel):
    for head_dim in (64, 80, 128, 192, 256):
        assert reason(kernel, head_dim=head_dim) is None
    for more in ({"window": 3}, {"sinks": True}, {"block_size": 8}, {"block_size": 256}, {"heads": (16, 1)}):
        assert reason(kernel, **more) is None


@pytest.mark.parametrize("kernel", ["prefill_attention", "decode_attention"])
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"dtype": torch.float32}, "float16 and bfloat16"),
        ({"head_dim": 16}, "not 16"),
        ({"head_dim": 512}, "not 512"),
        ({"head_dim": 68}, "16 bytes"),
        ({"block_size": 4}, "from 8 on, not 4"),
        ({"block_size": 24}, "power of two"),
        ({"heads": (130, 1)}, "not 130"),
    ],
)
def test_what_it_declines(kernel, facts, words):
    assert words in str(reason(kernel, **facts))


def test_elsewhere_it_declines(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert reason() == "needs compute capability 9.0"
    monkeypatch.undo()
    case = attention_case([1], [1])
    assert registered["prefill_attention"].why_not("hopper", case.prefill_args) == "needs cuda, not cpu"


def test_shared_memory():
    for dims, shape in [*prefill.SHAPES.items(), *prefill.OF_BLOCKS_OF_16.items()]:
        assert prefill.shared_bytes(dims, shape) + 1024 <= MOST_SHARED
    for dims, shape in decode.SHAPES.items():
        asked = decode.shared_bytes(dims, shape) + 2048
        assert asked <= MOST_SHARED
        assert shape.resident * (asked + 1024) <= MULTIPROCESSOR


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("dims", [64, 128, 192, 256])
def test_nothing_is_spilled_or_serialised(name, dims, tmp_path):
    shape = MODULES[name].SHAPES[dims]
    constant = {"DIMS": dims, "HEAD": dims, "GROUP": 4, "PAGE": 16, "WINDOWED": 1, "SINKS": 2, "BF16": 1}
    constant |= {"TILE": shape.tile, "STAGES": shape.stages}
    if name == "prefill_attention":
        constant |= prefill.options(shape) | {"SPLIT": 1}
    else:
        constant["CLUSTER"] = shape.cluster
    (tmp_path / "kernel.cu").write_text(source(name.removesuffix("_attention"), constant))
    command = ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-Xptxas=-v", "kernel.cu"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    (spilled,) = re.findall(r"(\d+) bytes spill stores", said)
    assert int(spilled) <= SPILLED.get((name, dims), 0)
    assert "serialized" not in said
