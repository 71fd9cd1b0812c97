"""A convolution whose norm is folded into it, and what follows it: activation, sum with a shortcut, mean.

    o = act(conv(gate[b, c] x[b, y, x, c], weight) + bias) + residual          conv as in kernels/conv2d
    mean[b, c] = 1/(Y' X') sum_yx o[b, y, x, c]                               conv2d_activation_mean alone

B images · Y, X rows and columns · C input and O output channels; activations as in kernels/bias_activation.
`gate` and `residual` may be missing: 1 and 0. Accumulates in at least float32 and rounds o once, to the dtype
of x; the mean is of what was not rounded. An implementation may round the gated map, the convolution, and o
before the sum or the mean, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.bias_activation import ACTIVATIONS, Name, bias_activation
from fastkernels.kernels.conv2d import conv2d, multiplied, output_shape, require_fit
from fastkernels.kernels.mean_pool import mean_pool


def _gated(x_BYXC: Tensor, gate_BC: Tensor | None) -> Tensor:
    return x_BYXC if gate_BC is None else x_BYXC * gate_BC[:, None, None, :]


def _unrounded(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor, stride: int, padding: int, groups: int, name: str
) -> Tensor:
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    wide = (x_BYXC.to(dtype), weight_OUVI.to(dtype), bias_O.to(dtype))
    return ACTIVATIONS[name](conv2d(*wide, stride, padding, groups, impl="reference"))


def _reference(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor,
    gate_BC: Tensor | None,
    residual_BYXO: Tensor | None,
    stride: int,
    padding: int,
    groups: int,
    name: str,
) -> Tensor:
    dtype = torch.promote_types(x_BYXC.dtype, torch.float32)
    gated_BYXC = x_BYXC if gate_BC is None else _gated(x_BYXC.to(dtype), gate_BC.to(dtype))
    o_BYXO = _unrounded(gated_BYXC, weight_OUVI, bias_O, stride, padding, groups, name)
    if residual_BYXO is not None:
        o_BYXO = o_BYXO + residual_BYXO.to(dtype)
    return o_BYXO.to(x_BYXC.dtype)


def _parts(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor,
    gate_BC: Tensor | None,
    residual_BYXO: Tensor | None,
    stride: int,
    padding: int,
    groups: int,
    name: Name,
) -> Tensor:
    """A kernel each, as is chosen for this device."""
    sums_BYXO = conv2d(_gated(x_BYXC, gate_BC), weight_OUVI, None, stride, padding, groups)
    o_BYXO = bias_activation(sums_BYXO, bias_O, name)
    return o_BYXO if residual_BYXO is None else o_BYXO + residual_BYXO


def _mean_reference(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor, stride: int, padding: int, groups: int, name: str
) -> tuple[Tensor, Tensor]:
    o_BYXO = _unrounded(x_BYXC, weight_OUVI, bias_O, stride, padding, groups, name)
    return o_BYXO.to(x_BYXC.dtype), o_BYXO.flatten(1, 2).mean(1).to(x_BYXC.dtype)


def _mean_parts(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor, stride: int, padding: int, groups: int, name: Name
) -> tuple[Tensor, Tensor]:
    o_BYXO = conv2d_activation(x_BYXC, weight_OUVI, bias_O, stride, padding, groups, name)
    return o_BYXO, mean_pool(o_BYXO)


def _fake(x_BYXC: Tensor, weight_OUVI: Tensor, stride: int, padding: int, groups: int) -> Tensor:
    return x_BYXC.new_empty(output_shape(x_BYXC, weight_OUVI, stride, padding, groups))


def _mean_fake(
    x_BYXC: Tensor, weight_OUVI: Tensor, bias_O: Tensor, stride: int, padding: int, groups: int, name: str
) -> tuple[Tensor, Tensor]:
    o_BYXO = _fake(x_BYXC, weight_OUVI, stride, padding, groups)
    return o_BYXO, o_BYXO.new_empty(o_BYXO.shape[0], o_BYXO.shape[3])


_conv2d_activation = Kernel(
    "conv2d_activation",
    "(Tensor x, Tensor weight, Tensor bias, Tensor? gate, Tensor? residual, int stride, int padding, "
    "int groups, str name) -> Tensor",
    _reference,
    fake=lambda x, weight, bias, gate, residual, *how: _fake(x, weight, *how[:3]),
    implementations=(
        Implementation("depthwise", "fastkernels.kernels.conv2d_triton"),
        Implementation("triton", f"{__name__}_triton"),
        Implementation("parts", _parts, devices=("cpu", "cuda")),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.numel() // x_BYXC.shape[-1],
    work=lambda tally, x, weight, bias, gate, residual, *how: multiplied(tally, x, weight, *how[:3]),
)
_conv2d_activation_mean = Kernel(
    "conv2d_activation_mean",
    "(Tensor x, Tensor weight, Tensor bias, int stride, int padding, int groups, str name) "
    "-> (Tensor, Tensor)",
    _mean_reference,
    fake=_mean_fake,
    implementations=(
        Implementation("depthwise", "fastkernels.kernels.conv2d_triton"),
        Implementation("parts", _mean_parts, devices=("cpu", "cuda")),
    ),
    rows=lambda x_BYXC, *_: x_BYXC.shape[0],
    work=lambda tally, x, weight, bias, *how: multiplied(tally, x, weight, *how[:3]),
)


def conv2d_activation(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor,
    stride: int,
    padding: int,
    groups: int,
    name: Name,
    *,
    gate_BC: Tensor | None = None,
    residual_BYXO: Tensor | None = None,
    impl: str | None = None,
) -> Tensor:
    """[B, Y', X', O], contiguous, in the dtype of x: Y' = (Y + 2 padding - U) // stride + 1.

    All tensors have one dtype. Raises KernelError when `impl` cannot serve the call, ValueError where shapes
    do not fit and for another activation.
    """
    shape = _require(x_BYXC, weight_OUVI, stride, padding, groups, name)
    for what, tensor, wanted in (
        ("gate", gate_BC, (x_BYXC.shape[0], x_BYXC.shape[-1])),
        ("residual", residual_BYXO, shape),
    ):
        if tensor is not None and tuple(tensor.shape) != wanted:
            raise ValueError(f"{what} is {list(tensor.shape)}, it must be {list(wanted)}")
    return _conv2d_activation(
        x_BYXC, weight_OUVI, bias_O, gate_BC, residual_BYXO, stride, padding, groups, name, impl=impl
    )


def conv2d_activation_mean(
    x_BYXC: Tensor,
    weight_OUVI: Tensor,
    bias_O: Tensor,
    stride: int,
    padding: int,
    groups: int,
    name: Name,
    *,
    impl: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The map [B, Y', X', O] as of conv2d_activation and the means of its channels [B, O].

    Raises KernelError when `impl` cannot serve the call, ValueError where shapes do not fit, where there is
    no place to take a mean of, and for another activation.
    """
    shape = _require(x_BYXC, weight_OUVI, stride, padding, groups, name)
    if not shape[1] * shape[2]:
        raise ValueError(f"a map of {list(shape)} has no place to take a mean of")
    return _conv2d_activation_mean(x_BYXC, weight_OUVI, bias_O, stride, padding, groups, name, impl=impl)


def _require(
    x_BYXC: Tensor, weight_OUVI: Tensor, stride: int, padding: int, groups: int, name: str
) -> tuple[int, int, int, int]:
    """The shape of the result."""
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    require_fit(x_BYXC, weight_OUVI, groups)
    return output_shape(x_BYXC, weight_OUVI, stride, padding, groups)
