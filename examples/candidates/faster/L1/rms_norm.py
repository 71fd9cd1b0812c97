"""RMSNorm for CPUs in one C function: an honest candidate, and a model of how to write one.

    s = x + residual                                   (only with a residual)
    y = s / sqrt(mean(s^2) + eps) * weight

T tokens, D hidden; any leading shape. The kernel lies beside this file (rms_norm_kernel.c), is compiled on
first use for the machine that it runs on, and takes float32 and bfloat16. Other dtypes, other devices and
traced calls (torch.compile) are served by the formula above in PyTorch: right, but not where it is fast.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

_SOURCE = Path(__file__).with_name("rms_norm_kernel.c")
_COMPILE = ("cc", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """y, or (y, s) with a residual."""
        weight_D = self.weight
        if torch.compiler.is_compiling() or not x.is_cpu or x.dtype not in _FUNCTIONS:
            return _formula(x, residual, weight_D, self.eps)
        x_TD = x.contiguous()
        y_TD = torch.empty_like(x_TD)
        width = weight_D.numel()
        kernel, rows = _kernel(x.dtype), x.numel() // width
        at = x_TD.data_ptr(), weight_D.data_ptr(), y_TD.data_ptr()
        if residual is None:
            kernel(at[0], None, *at[1:], None, rows, width, self.eps)
            return y_TD
        residual_TD = residual.contiguous()
        sum_TD = torch.empty_like(x_TD)
        kernel(at[0], residual_TD.data_ptr(), *at[1:], sum_TD.data_ptr(), rows, width, self.eps)
        return y_TD, sum_TD


_FUNCTIONS = {torch.float32: "rms_norm_f32", torch.bfloat16: "rms_norm_bf16"}


@cache
def _kernel(dtype: torch.dtype):
    """The C function for a dtype: (x, residual, weight, y, sum, rows, width, eps)."""
    function = getattr(ctypes.CDLL(str(_library())), _FUNCTIONS[dtype])
    function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 2 + [ctypes.c_float]
    function.restype = None
    return function


@cache
def _library() -> Path:
    """The compiled kernel, in the user's cache: one file for each source, command and machine."""
    cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastkernels-examples"
    cache_dir.mkdir(parents=True, exist_ok=True)
    made_of = _SOURCE.read_bytes() + repr((_COMPILE, platform.uname())).encode()
    key = hashlib.sha256(made_of).hexdigest()[:16]
    library = cache_dir / f"rms_norm-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache_dir) as folder:  # workers may compile at the same time
            built = Path(folder) / library.name
            subprocess.run([*_COMPILE, str(_SOURCE), "-o", str(built), "-lm"], check=True)
            built.replace(library)
    return library


def _formula(
    x_TD: Tensor, residual_TD: Tensor | None, weight_D: Tensor, eps: float
) -> Tensor | tuple[Tensor, Tensor]:
    s_TD = x_TD if residual_TD is None else x_TD + residual_TD
    wide_TD = s_TD.to(torch.promote_types(s_TD.dtype, torch.float32))
    scale_T1 = torch.rsqrt(wide_TD.square().mean(-1, keepdim=True) + eps)
    y_TD = (wide_TD * scale_T1).to(s_TD.dtype) * weight_D
    return y_TD if residual_TD is None else (y_TD, s_TD)
