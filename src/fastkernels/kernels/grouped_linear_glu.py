"""A linear layer by experts and the gated linear unit of its output: the first half of an expert's block.

    y[s] = act(x[s // R] Wg[e(s)]^T) * (x[s // R] Wu[e(s)]^T)       e, R and slots: kernels/grouped_linear

S slots · K inputs · F outputs · E experts. Wg and Wu are one packed weight [E, 2F, K], gate first;
activations as in kernels/glu. Accumulates in at least float32; rounds to the dtype of x after the products
and at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel, registered
from fastkernels.kernels.glu import ACTIVATIONS, Activation, glu
from fastkernels.kernels.grouped_linear import grouped_linear
from fastkernels.kernels.providers import PROVIDERS


def _in_turn(multiply: Callable[..., Tensor], activate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Two kernels."""

    def run(x_RK: Tensor, weight_E2FK: Tensor, order_S: Tensor, starts_E1: Tensor, activation: str) -> Tensor:
        return activate(multiply(x_RK, weight_E2FK, order_S, starts_E1, None), activation)

    return run


_grouped_linear_glu = Kernel(
    "grouped_linear_glu",
    "(Tensor x, Tensor weight, Tensor order, Tensor starts, str activation) -> Tensor",
    _in_turn(registered["grouped_linear"].reference, registered["glu"].reference),
    fake=lambda x_RK, weight_E2FK, order_S, *_: x_RK.new_empty((order_S.shape[0], weight_E2FK.shape[1] // 2)),
    implementations=(
        Implementation("triton", f"{__name__}_triton"),
        Implementation("hopper", "fastkernels.kernels.grouped_linear_hopper"),
        Implementation("parts", _in_turn(grouped_linear, glu), devices=("cpu", "cuda")),
        Implementation(
            "deep_gemm",
            f"{PROVIDERS}.deep_gemm",
            requires=("deep_gemm or vllm.third_party.deep_gemm",),
            extra="vllm",
        ),
    ),
    rows=lambda x_RK, weight_E2FK, order_S, *_: order_S.shape[0],
)


def grouped_linear_glu(
    x_RK: Tensor,
    weight_E2FK: Tensor,
    order_S: Tensor,
    starts_E1: Tensor,
    activation: Activation,
    *,
    impl: str | None = None,
) -> Tensor:
    """[S, F] in x's dtype, contiguous; x [S / R, K] and weight [E, 2F, K] share it; order, starts int32.

    Raises KernelError when `impl` cannot serve the call, ValueError for another activation or where S is no
    multiple of x's rows.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{activation}'; there are {', '.join(ACTIVATIONS)}")
    rows, slots = x_RK.shape[0], order_S.shape[0]
    if slots and (not rows or slots % rows):
        raise ValueError(f"{slots} slots cannot share {rows} rows evenly")
    return _grouped_linear_glu(x_RK, weight_E2FK, order_S, starts_E1, activation, impl=impl)
