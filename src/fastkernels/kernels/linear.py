"""A linear layer.

    y[t, n] = sum_k x[t, k] weight[n, k] + bias[n]

T tokens · K inputs · N outputs. weight is [N, K], as checkpoints store it. Accumulates in at least float32,
rounds to the dtype of x.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.providers import PROVIDERS


def _reference(x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    product_TN = x_TK @ weight_NK.T
    return product_TN if bias_N is None else product_TN + bias_N


_linear = Kernel(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _reference,
    fake=lambda x_TK, weight_NK, bias_N: x_TK.new_empty((*x_TK.shape[:-1], weight_NK.shape[0])),
    implementations=(
        # One function, named by who computes: PyTorch hands CUDA tensors to cuBLAS, others to oneDNN or MKL.
        Implementation("cublas", F.linear, devices=("cuda",)),
        Implementation("torch", F.linear, devices=("cpu",)),
        Implementation("triton", f"{__name__}_triton"),
        Implementation("gemv", f"{__name__}_gemv"),
        Implementation("tf32x3", f"{__name__}_tf32x3"),
        Implementation(
            "deep_gemm",
            f"{PROVIDERS}.deep_gemm",
            requires=("deep_gemm or vllm.third_party.deep_gemm",),
            extra="vllm",
        ),
        Implementation("quack", f"{PROVIDERS}.quack", requires=("quack",), extra="quack"),
    ),
    # One call of PyTorch either way.
    cpu=(),
    rows=lambda x_TK, *_: x_TK.numel() // x_TK.shape[-1],
    work=lambda tally, x, weight_NK, bias: tally.multiply(x, 2 * x.numel() * weight_NK.shape[0]),
)


def linear(
    x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, *, impl: str | None = None
) -> Tensor:
    """x @ weight.T + bias, contiguous; x has any number of dimensions before the last, all tensors one dtype.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _linear(x_TK, weight_NK, bias_N, impl=impl)
