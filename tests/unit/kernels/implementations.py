"""Which implementations the CPU tests run: reference and torch always, Triton where its interpreter is on.

`test_interpreted.py` runs the same tests with the interpreter in a process of its own: the variable must be
set before the first Triton kernel is defined, and would keep kernels from running on a GPU in this process.
"""

import pytest
import torch

from fastkernels.kernels.policy import interpreting

REFERENCE = pytest.param("reference", id="reference")
TORCH = pytest.param("torch", id="torch")
TRITON = pytest.param(
    "triton", id="triton", marks=pytest.mark.skipif(not interpreting(), reason="runs in test_interpreted.py")
)
GEMV = pytest.param("gemv", id="triton-gemv", marks=TRITON.marks)
TF32X3 = pytest.param("tf32x3", id="triton-tf32x3", marks=TRITON.marks)

# Triton 3.6 and 3.7 interpret a conversion to bfloat16 as truncation, twice the error of rounding; float16
# they round.
TRITON_DTYPE = torch.float16 if interpreting() else torch.bfloat16
DTYPES = [torch.float32, TRITON_DTYPE]
