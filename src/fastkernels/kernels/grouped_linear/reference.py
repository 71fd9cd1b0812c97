"""grouped_linear in plain PyTorch: one matrix product for each expert that has slots."""

from __future__ import annotations

from torch import Tensor


def grouped_linear(
    x_RK: Tensor, weight_ENK: Tensor, order_S: Tensor, starts_E1: Tensor, slot_weights_S: Tensor | None
) -> Tensor:
    y_SN = x_RK.new_empty((order_S.shape[0], weight_ENK.shape[1]))
    if not y_SN.numel():
        return y_SN
    sharing = order_S.shape[0] // x_RK.shape[0]
    starts = starts_E1.tolist()
    for weight_NK, start, end in zip(weight_ENK, starts, starts[1:]):
        if start == end:
            continue
        slots = order_S[start:end].long()
        product = x_RK[slots // sharing] @ weight_NK.T
        y_SN[slots] = product if slot_weights_S is None else _scaled(product, slot_weights_S[slots])
    return y_SN


def _scaled(product: Tensor, weights: Tensor) -> Tensor:
    return (product * weights[:, None]).to(product.dtype)
