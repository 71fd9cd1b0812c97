"""grouped_linear and grouped_linear_glu in CUDA C++ for Hopper (kernels/hopper/grouped.cu): the weight is the
first factor of the tensor cores, the slots of an expert are the second.

The routing stays on the device: programs walk over the tiles that `starts` leaves them.

S slots · R slots of a row of x · E experts · N or F outputs · K inputs
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_longlong, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels import checks, hopper
from fastkernels.kernels.counters import zeroed
from fastkernels.kernels.cuda_source import MISSING, Params, nvrtc, tensor_map
from fastkernels.kernels.launch import ceil_div, multiprocessors

ROWS = 128  # of the weight in a tile
THREADS = 384
MOST_EXPERTS = 512  # where each begins lies in shared memory
ACTIVATIONS = {"silu": 1, "gelu_tanh": 2}
EIGHT = 8  # outputs that a thread writes, and rows of gates in turn with rows of what they multiply
MOST_PARTS = 8  # of a tile
PARTIAL_BYTES = 16 << 20  # of sums that parts leave


class Tile(NamedTuple):
    """slots: at most · panels: of 64 inputs in a step · stages: steps on their way · split: whether the
    steps of a tile may be · ahead: how many steps early its weight is asked into L2 · together: tiles of
    slots that run side by side and share rows of the weight in L2."""

    slots: int
    panels: int
    stages: int
    split: bool
    ahead: int = 0
    together: int = 8


# By slots of an expert on average. Few slots: the weight streams past, so many stages, and parts of tiles
# where the processors are more than the tiles. Not measured yet.
TILES = (
    (2, Tile(16, 2, 6, True)),
    (8, Tile(32, 2, 5, True)),
    (32, Tile(64, 2, 4, True)),
    (64, Tile(128, 1, 6, False)),
    (None, Tile(288, 1, 4, False, ahead=8)),
)


class _Fields(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("order", c_void_p),
        ("starts", c_void_p),
        ("slot_weights", c_void_p),
        ("partial", c_void_p),
        ("counters", c_void_p),
        ("x_stride", c_longlong),
        ("inputs", c_int),
        ("outputs", c_int),
        ("most_parts", c_int),
    ]


def unsupported(
    kernel: str, x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, last: object = None
) -> str | None:
    if reason := checks.not_half(x_RK, weight_ENK) or checks.not_aligned(x_RK, weight_ENK):
        return reason
    if torch.cuda.get_device_capability(x_RK.device) != (9, 0):
        return "needs compute capability 9.0"
    experts, rows, _ = weight_ENK.shape
    if not 0 < experts <= MOST_EXPERTS:
        return f"serves up to {MOST_EXPERTS} experts, not {experts}"
    if not weight_ENK.is_contiguous():
        return "needs a contiguous weight"
    outputs = rows
    if kernel == "grouped_linear_glu":
        outputs = rows // 2
        if last not in ACTIVATIONS:
            return f"has {' and '.join(ACTIVATIONS)}, not {last}"
    if outputs % EIGHT:
        return f"needs a multiple of {EIGHT} outputs, not {outputs}"
    if nvrtc() is None:
        return MISSING
    return None


def grouped_linear(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, slot_weights_S: Tensor | None
) -> Tensor:
    return launch(x_RK, weight_ENK, order_S, starts_E1, slot_weights_S)


def grouped_linear_glu(
    x_RK: Tensor, weight_E2FK: Tensor, order_S: Tensor, starts_E1: Tensor, activation: str
) -> Tensor:
    return launch(x_RK, weight_E2FK, order_S, starts_E1, activation=activation)


def tile_for(slots: int, experts: int) -> Tile:
    """The tile for this many slots of an expert on average."""
    average = ceil_div(slots, experts)
    return next(tile for most, tile in TILES if most is None or average <= most)


def shared_bytes(tile: Tile) -> int:
    return tile.stages * tile.panels * (ROWS + tile.slots) * 2 * hopper.PANEL + hopper.ALIGNMENT


def constants(
    tile: Tile, experts: int, sharing: int, is_weighted: bool, activation: str | None, is_bf16: bool
) -> dict[str, int]:
    """What the kernel is compiled for."""
    return {
        "SLOTS": tile.slots,
        "PANELS": tile.panels,
        "STAGES": tile.stages,
        "AHEAD": tile.ahead,
        "SPLIT": int(tile.split),
        "TOGETHER": tile.together,
        "EXPERTS": experts,
        "SHARING": sharing,
        "WEIGHTED": int(is_weighted),
        "UNIT": ACTIVATIONS[activation] if activation else 0,
        "BF16": int(is_bf16),
    }


def launch(
    x_RK: Tensor,
    weight_ENK: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    slot_weights_S: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    slots, (experts, rows, inputs), device = order_S.shape[0], weight_ENK.shape, x_RK.device
    outputs = rows // 2 if activation else rows
    y_SN = x_RK.new_empty((slots, outputs))
    if y_SN.numel() == 0:
        return y_SN
    tile, programs = tile_for(slots, experts), multiprocessors(device)
    constant = constants(
        tile, experts, slots // x_RK.shape[0], slot_weights_S is not None, activation,
        x_RK.dtype == torch.bfloat16,
    )  # fmt: skip
    partial, most_parts = None, 0
    if tile.split:
        tiles = min(slots, slots // tile.slots + experts) * ceil_div(rows, ROWS)
        most_parts = min(tiles * MOST_PARTS, PARTIAL_BYTES // (tile.slots * ROWS * 4))
        partial = torch.empty(most_parts * tile.slots * ROWS, dtype=torch.float32, device=device)
    counters = zeroed(2 + most_parts, device)  # two for each tile of several parts
    if activation:
        # Eight rows of gates, the eight of what they multiply, and so on.
        pairs = weight_ENK.view(2 * experts, outputs // EIGHT, EIGHT, inputs)
        weight = tensor_map(pairs, (3, 2, 0, 1), (hopper.PANEL, EIGHT, 2, ROWS // 2 // EIGHT))
    else:
        weight = tensor_map(weight_ENK, (2, 1, 0), (hopper.PANEL, ROWS, 1))
    params = Params(
        [weight], _Fields, x=x_RK.data_ptr(), y=y_SN.data_ptr(), order=order_S.data_ptr(),
        starts=starts_E1.data_ptr(), slot_weights=hopper.address(slot_weights_S),
        partial=hopper.address(partial), counters=counters.data_ptr(),
        x_stride=x_RK.stride(0) * x_RK.element_size(), inputs=inputs, outputs=outputs, most_parts=most_parts,
    )  # fmt: skip
    function = hopper.function("grouped", constant, shared_bytes(tile), device)
    function.launch((programs, 1, 1), THREADS, params)
    return y_SN
