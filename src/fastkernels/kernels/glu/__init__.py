"""Gated linear unit: the product of an activated gate and its input, both halves in one tensor.

    y[t, f] = act(x[t, f]) * x[t, F + f]

    silu(a) = a / (1 + exp(-a))      gelu(a) = a/2 (1 + erf(a / sqrt 2))
    gelu_tanh(a) = a/2 (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3)))

T tokens · F hidden of the MLP. Gate first, as packed gate_up projections lie. Activation and product in
float32 (float64 stays float64), rounded once.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.glu import reference

Activation = Literal["silu", "gelu", "gelu_tanh"]

_glu = Kernel(
    "glu",
    "(Tensor x, str activation) -> Tensor",
    reference.glu,
    fake=lambda x_T2F, activation: x_T2F.new_empty((*x_T2F.shape[:-1], x_T2F.shape[-1] // 2)),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("flashinfer", f"{__name__}.flashinfer", requires=("flashinfer",), extra="gpu"),
        Implementation("inductor", f"{__name__}.inductor"),
        Implementation("torch", f"{__name__}.torch", devices=("cpu", "cuda")),
    ),
    rows=lambda x_T2F, *_: x_T2F.numel() // x_T2F.shape[-1],
)


def glu(x_T2F: Tensor, activation: Activation, *, impl: str | None = None) -> Tensor:
    """act(x[..., :F]) * x[..., F:], contiguous, in x's dtype; x's last dimension is contiguous and even.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation.
    """
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(reference.ACTIVATIONS)}")
    return _glu(x_T2F, activation, impl=impl)
