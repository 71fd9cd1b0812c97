"""Grouped products in CUDA C++ for Hopper, without a GPU: what they decline, what fits; and thread by thread
on a CPU: they answer, and do not get stuck."""

import ctypes
from typing import Any

import pytest
import torch

from fastkernels.kernels import grouped_linear_hopper as grouped
from fastkernels.kernels import hopper, registered
from fastkernels.kernels.grouped_linear_hopper import Tile
from tests.moe_cases import Shape, grouped_answer, grouped_arguments
from tests.pointwise_cases import worst_row_error
from tests.unit.kernels.emulation import COMPILER, Emulated, tensor_map
from tests.unit.kernels.hopper import MOST_SHARED

IN_SHARED_MEMORY = 8 << 10  # what the kernel declares itself, at most
# Multiprocessors, tile, shape.
CASES = {
    "one-token": (3, Tile(16, 2, 3, True), Shape(1, 8, 2, 272, 200)),
    "parts": (5, Tile(16, 1, 4, True), Shape(2, 4, 1, 144, 1104)),
    "few": (4, Tile(64, 2, 3, True), Shape(40, 4, 2, 144, 136)),
    "widths": (2, Tile(128, 1, 3, False), Shape(150, 3, 2, 144, 72)),
    "many": (2, Tile(288, 1, 4, False, ahead=8, together=2), Shape(1100, 2, 1, 144, 64)),
}


def emulate(monkeypatch: Any, folder: Any, multiprocessors: int, tile: Tile) -> list[torch.Tensor]:
    counters: list[torch.Tensor] = []

    def zeroed(count: int, device: torch.device) -> torch.Tensor:
        counters.append(torch.zeros(count, dtype=torch.int32))
        return counters[-1]

    monkeypatch.setattr(grouped, "tensor_map", tensor_map)
    monkeypatch.setattr(hopper, "function", lambda name, constant, *_: Emulated(name, constant, folder))
    monkeypatch.setattr(grouped, "multiprocessors", lambda _: multiprocessors)
    monkeypatch.setattr(grouped, "zeroed", zeroed)
    monkeypatch.setattr(grouped, "tile_for", lambda *_: tile)
    return counters


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.whole  # a minute; a GPU runs tests/gpu/test_moe_hopper.py
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_answers(name, is_first, tmp_path, monkeypatch):
    multiprocessors, tile, shape = CASES[name]
    counters = emulate(monkeypatch, tmp_path, multiprocessors, tile)
    x, weight, order, starts, weights = grouped_arguments(shape, torch.bfloat16, is_first, not is_first)
    if is_first:
        y = grouped.grouped_linear_glu(x, weight, order, starts, "silu")
        gate, up = grouped_answer(shape, x, weight, None).to(torch.bfloat16).double().chunk(2, dim=1)
        answer = torch.nn.functional.silu(gate) * up
    else:
        y = grouped.grouped_linear(x, weight, order, starts, weights)
        answer = grouped_answer(shape, x, weight, weights)
    assert worst_row_error(y, answer) <= 1.5 * torch.finfo(torch.bfloat16).eps
    assert not any(one.any() for one in counters)


def reason(shape: Shape, dtype: torch.dtype = torch.bfloat16, activation: str | None = None) -> str | None:
    x, weight, order, starts, weights = grouped_arguments(shape, dtype, True, True)
    if activation:
        return grouped.unsupported("grouped_linear_glu", x, weight, order, starts, activation)
    return grouped.unsupported("grouped_linear", x, weight, order, starts, weights)


def test_what_it_declines(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(grouped, "nvrtc", lambda: ctypes.CDLL(None))
    shape = Shape(3, 4, 2, 48, 40)
    assert reason(shape) is None
    assert reason(shape, torch.float16, "gelu_tanh") is None
    assert "float16 and bfloat16" in str(reason(shape, torch.float32))
    assert "16 bytes" in str(reason(Shape(3, 4, 2, 48, 36)))
    assert "multiple of 8 outputs, not 12" in str(reason(Shape(3, 4, 2, 24, 40), activation="silu"))
    assert "not relu2" in str(reason(shape, activation="relu2"))
    assert "not 513" in str(reason(Shape(3, 513, 2, 48, 40)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert reason(shape) == "needs compute capability 9.0"
    args = grouped_arguments(shape, torch.bfloat16, True, True)
    assert registered["grouped_linear"].why_not("hopper", args) == "needs cuda, not cpu"


def test_shared_memory():
    for _, tile in grouped.TILES:
        assert grouped.shared_bytes(tile) + IN_SHARED_MEMORY <= MOST_SHARED
