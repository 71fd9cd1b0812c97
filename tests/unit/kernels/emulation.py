"""The Hopper kernels on a CPU: their CUDA C++ with emulation.h in place of what a GPU does."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastkernels.kernels import hopper
from fastkernels.kernels.cuda_source import MAP_BYTES, Params
from fastkernels.kernels.decode_attention import hopper as decode
from fastkernels.kernels.hopper.sources import source
from fastkernels.kernels.prefill_attention import hopper as prefill

COMPILER = shutil.which("g++")
# Functions in PTX, which emulation.h defines anew. Those of wgmma are generated: removed by where they lie.
IN_PTX = (
    "shared_address",
    "barrier_init", "barrier_expect", "barrier_arrive", "barrier_wait", "threads_sync",
    "threads_arrive", "follow", "copy_3d", "copy_4d", "prefetch_map", "prefetch_3d", "prefetch_4d",
    "exp2_fast", "log2_fast", "pack", "unpack", "matrix_load", "matrix_load_transposed", "multiply",
    "copy_16", "copies_commit", "copies_wait", "transposed", "meet", "in_program",
)  # fmt: skip
RUN = """
extern "C" void run(const Params* p, int x, int y, int z, int threads) {
    gridDim = {x, y, z};
    blockDim = {threads, 1, 1};
    for (int cluster = 0; cluster < x * y * z / CLUSTER; ++cluster) {
        blockIdx = {cluster % x, cluster / x % y, cluster / x / y * CLUSTER};
        for (auto& of_block : all_barriers) of_block.clear();
        memset(memories, 0xff, sizeof memories);
        body = [=] { KERNEL(*p); };
        run_cluster(CLUSTER, threads);
    }
}
"""


def for_a_cpu(name: str, constant: dict[str, int]) -> str:
    text = source(name, constant)
    text = re.sub(r"#ifdef WATCHDOG.*?#else\n(.*?)#endif\n", r"\1", text, flags=re.DOTALL)
    text = re.sub(
        r"DEVICE void wgmma_fence.*?(?=// (?:Prefill|Grouped products): )", "", text, flags=re.DOTALL
    )
    for function in IN_PTX:
        text = _without(text, function)
    text = re.sub(r"typedef unsigned [\w ]+;", "", text)
    text = re.sub(
        r'asm volatile\("st\.shared\.v4[^"]*"\s*::"r"\((.*?)\), "r"\(0\) : "memory"\);',
        r"clear_16(\1);", text, flags=re.DOTALL,
    )  # fmt: skip
    text = re.sub(
        r'asm volatile\("st\.global\.v4[^"]*"\s*::"l"\((.*?)\),' + 4 * r'\s*"r"\((\w+\[\d\])\),?' + r"[^;]*;",
        r"store_16(\1, \2, \3, \4, \5);", text, flags=re.DOTALL,
    )  # fmt: skip
    text = re.sub(r'asm volatile\("(?:fence|setmaxnreg)[^"]*"(?: ::: "memory")?\);', "", text)
    text = text.replace("extern __shared__ char memory[];", "")
    text = re.sub(
        r"__shared__ (\w+) (\w+);", r"static \1 all_\2[MOST_BLOCKS]; \1& \2 = all_\2[current->rank];", text
    )
    assert "asm" not in text, text[text.index("asm") - 300 :][:600]
    cluster = f"#define CLUSTER {constant.get('CLUSTER', 1)}\n"
    return cluster + '#include "emulation.h"\n' + text + RUN.replace("KERNEL", name)


def _without(text: str, function: str) -> str:
    while match := re.search(rf"(?:template <[^>]*> )?DEVICE [\w *]+ {function}\(", text):
        depth, end = 0, text.index("{", match.end())
        while True:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0:
                break
        text = text[: match.start()] + text[end:]
    return text


class Emulated:
    """Stands for a cuda_source.Function."""

    def __init__(self, name: str, constant: dict[str, int], folder: Path) -> None:
        (folder / "kernel.cpp").write_text(for_a_cpu(name, constant))
        command = [COMPILER or "g++", "-O1", "-std=c++17", "-fno-strict-aliasing", "-w", "-shared", "-fPIC",
                   f"-I{Path(__file__).parent}", "-o", str(folder / "kernel.so"), "kernel.cpp"]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        self._library = ctypes.CDLL(str(folder / "kernel.so"))

    def launch(self, grid: tuple[int, int, int], threads: int, params: Params) -> None:
        self._library.run(ctypes.c_void_p(params.address), *grid, threads)


class _Map(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_long),
        ("sizes", ctypes.c_long * 4),
        ("strides", ctypes.c_long * 4),
        ("box", ctypes.c_long * 4),
    ]


def tensor_map(tensor: Tensor, order: tuple[int, ...], box: tuple[int, ...]) -> bytes:
    made = _Map(tensor.data_ptr(), len(order))
    shape, strides = tensor.shape, tensor.stride()
    for at, (dim, length) in enumerate(zip(order, box, strict=True)):
        made.sizes[at], made.strides[at], made.box[at] = shape[dim], strides[dim] * 2, length
    return ctypes.string_at(ctypes.addressof(made), ctypes.sizeof(made)).ljust(MAP_BYTES, b"\0")


def emulate(monkeypatch: Any, folder: Path, multiprocessors: int) -> list[Tensor]:
    """Both implementations on CPU tensors from here on; the counters of their launches, in order."""
    counters: list[Tensor] = []

    def zeroed(count: int, device: torch.device) -> Tensor:
        counters.append(torch.zeros(count, dtype=torch.int32))
        return counters[-1]

    monkeypatch.setattr(hopper, "tensor_map", tensor_map)
    monkeypatch.setattr(prefill, "tensor_map", tensor_map)
    monkeypatch.setattr(hopper, "function", lambda name, constant, *_: Emulated(name, constant, folder))
    for module in (prefill, decode):
        monkeypatch.setattr(module, "multiprocessors", lambda _: multiprocessors)
        monkeypatch.setattr(module, "zeroed", zeroed)
    return counters
