"""DeepGEMM's matrix products of bfloat16 on Hopper: linear, grouped_linear, grouped_linear_glu.

The package of its own, else the copy inside vLLM, which is imported without vLLM. It compiles a kernel at the
first call of each shape of a weight, with the CUDA toolkit at CUDA_HOME: by nvcc, or by NVRTC (its variable
DG_JIT_USE_NVRTC), which is chosen here where the toolkit has no nvcc.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastkernels.kernels import checks
from fastkernels.kernels.glu import glu

HOPPER = (9, 0)
BLOCK = 64  # inputs, of which an expert's product takes whole blocks


def _library() -> Any:
    home = Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    if not (shutil.which("nvcc") or (home / "bin" / "nvcc").is_file()):
        os.environ.setdefault("DG_JIT_USE_NVRTC", "1")
    try:
        if find_spec("deep_gemm") is None:
            return _of_vllm()
        import deep_gemm  # pyright: ignore[reportMissingImports]
    except (AssertionError, RuntimeError) as error:
        raise ImportError(f"DeepGEMM needs a CUDA toolkit: set CUDA_HOME ({error!r})") from error
    return deep_gemm


def _of_vllm() -> ModuleType:
    """As a package of its own: all its imports are relative."""
    vllm = find_spec("vllm")
    folders = (vllm and vllm.submodule_search_locations) or []
    spec = PathFinder.find_spec("deep_gemm", [str(Path(folder, "third_party")) for folder in folders])
    if spec is None or spec.loader is None:
        raise ImportError("this vLLM has no DeepGEMM")
    module = sys.modules["deep_gemm"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["deep_gemm"]
        raise
    return module


library = _library()


def unsupported(kernel: str, x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    if kernel == "linear" and rest[0] is not None:
        return "adds no bias"
    if x.dtype != torch.bfloat16:
        return f"serves bfloat16, not {str(x.dtype).removeprefix('torch.')}"
    if torch.cuda.get_device_capability(x.device) < HOPPER:
        return "needs compute capability 9.0"
    if weight.shape[-2] * weight.element_size() % checks.VECTOR_BYTES:
        return f"needs output rows of a multiple of {checks.VECTOR_BYTES} bytes"
    if kernel != "linear" and weight.shape[-1] % BLOCK:
        return f"needs a multiple of {BLOCK} inputs"
    if not weight.is_contiguous():
        return "needs a contiguous weight"
    return checks.not_alike(x, weight) or checks.not_rows(x) or checks.not_aligned(x, weight)


def linear(x_TK: Tensor, weight_NK: Tensor, bias_N: None) -> Tensor:
    y_TN = x_TK.new_empty((*x_TK.shape[:-1], weight_NK.shape[0]))
    if y_TN.numel():
        library.bf16_gemm_nt(x_TK.view(-1, x_TK.shape[-1]), weight_NK, y_TN.view(-1, weight_NK.shape[0]))
    return y_TN


class Places(NamedTuple):
    """Where the sorted slots of a call lie, when each expert's rows begin at a whole tile."""

    row_S: Tensor  # int64, of the slot that is sorted to s
    expert_M: Tensor  # int32, of each row; -1 where there is none

    @classmethod
    def of(cls, starts_E1: Tensor, slots: int, tile: int) -> Places:
        """All on the device. Each expert that has slots leaves less than a tile of rows empty."""
        device, experts = starts_E1.device, len(starts_E1) - 1
        rows = slots + min(experts, slots) * (tile - 1)
        tiles_E = (starts_E1.diff() + tile - 1) // tile
        first_E = (tiles_E.cumsum(0) - tiles_E) * tile
        sorted_S = torch.arange(slots, device=device, dtype=starts_E1.dtype)
        expert_S = torch.searchsorted(starts_E1[1:], sorted_S, right=True)
        row_S = first_E[expert_S] + sorted_S - starts_E1[expert_S]
        expert_M = torch.full((-(-rows // tile) * tile,), -1, dtype=torch.int32, device=device)
        return cls(row_S, expert_M.index_copy_(0, row_S, expert_S.int()))


def grouped_linear(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, slot_weights_S: Tensor | None
) -> Tensor:
    """It wants the rows of an expert together, from a whole tile on: gathered before, scattered after."""
    slots = len(order_S)
    y_SN = x_RK.new_empty((slots, weight_ENK.shape[1]))
    if not y_SN.numel():
        return y_SN
    order_S, tile = order_S.long(), library.get_m_alignment_for_contiguous_layout()
    places = Places.of(starts_E1, slots, tile)
    gathered_MK = x_RK.new_zeros((len(places.expert_M), x_RK.shape[1]))
    gathered_MK.index_copy_(0, places.row_S, x_RK.index_select(0, order_S // (slots // len(x_RK))))
    product_MN = x_RK.new_empty((len(gathered_MK), weight_ENK.shape[1]))
    library.m_grouped_bf16_gemm_nt_contiguous(gathered_MK, weight_ENK, product_MN, places.expert_M)
    product_SN = product_MN.index_select(0, places.row_S)
    if slot_weights_S is not None:
        product_SN = (product_SN * slot_weights_S.index_select(0, order_S)[:, None]).to(x_RK.dtype)
    return y_SN.index_copy_(0, order_S, product_SN)


def grouped_linear_glu(
    x_RK: Tensor, weight_E2FK: Tensor, order_S: Tensor, starts_E1: Tensor, activation: Any
) -> Tensor:
    """Two kernels: the gated linear unit is the choice for this device."""
    return glu(grouped_linear(x_RK, weight_E2FK, order_S, starts_E1, None), activation)
