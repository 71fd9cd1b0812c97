"""Blocks that widen a map, filter it in space and narrow it again, with a shortcut between the narrow ends.

    edge         y = pwl(exp(x))                            exp: k x k over all channels, to the wide map
    universal    y = proj(mid(exp(start(x))))               start, mid: depthwise, each may be missing
    squeezed     y = pwl(se(dw(pw(x))))                     dw: depthwise, se: squeeze and excitation
    each adds x where the stride is 1 and the channels stay

B images, Y, X rows and columns, C channels, O outputs; the wide map has C exp_ratio channels, rounded to a
multiple of 8. All are convolutions with folded norms; the activation follows exp, mid, pw and dw, and neither
start, proj, pwl nor the sum. The stride is mid's, start's where there is no mid. Rounded to the dtype of x
after each convolution and its activation, after the gate and after the sum; where several of these are one
kernel, once.
Mirrors timm.models._efficientnet_blocks.EdgeResidual, UniversalInvertedResidual and InvertedResidual after
fusing.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.nn.fusion import Fusion

from .conv_norm_act import ConvNormAct
from .squeeze_excite import SqueezeExcite

UNIT = 8  # widths are multiples of it
LEAST_SHARE = 0.9  # of a width that rounding keeps


class EdgeResidual(nn.Module):
    def __init__(
        self,
        in_chs: int,
        out_chs: int,
        exp_kernel_size: int = 3,
        stride: int = 1,
        exp_ratio: float = 1.0,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        wide = widened(in_chs, exp_ratio)
        self.has_skip = stride == 1 and in_chs == out_chs
        self.conv_exp = ConvNormAct(in_chs, wide, exp_kernel_size, stride, activation=activation)
        self.conv_pwl = ConvNormAct(wide, out_chs, activation="none")
        self.fuses = Fusion(self, "conv_pwl")

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, ceil(Y / stride), ceil(X / stride), O]"""
        y = self.conv_exp(x)
        return add_narrowed(x, y, self.conv_pwl, self.fuses) if self.has_skip else self.conv_pwl(y)


class UniversalInvertedResidual(nn.Module):
    def __init__(
        self,
        in_chs: int,
        out_chs: int,
        dw_kernel_size_start: int = 0,
        dw_kernel_size_mid: int = 3,
        stride: int = 1,
        exp_ratio: float = 1.0,
        activation: str = "relu",
    ) -> None:
        """Kernel sizes of 0: without that convolution."""
        super().__init__()
        wide, start, mid = widened(in_chs, exp_ratio), dw_kernel_size_start, dw_kernel_size_mid
        if stride > 1 and not (start or mid):
            raise ValueError(f"a stride of {stride} needs a depthwise convolution")
        self.has_skip = stride == 1 and in_chs == out_chs
        self.dw_start = nn.Identity()
        if start:
            self.dw_start = ConvNormAct(in_chs, in_chs, start, 1 if mid else stride, in_chs, "none")
        self.pw_exp = ConvNormAct(in_chs, wide, activation=activation)
        self.dw_mid = ConvNormAct(wide, wide, mid, stride, wide, activation) if mid else nn.Identity()
        self.pw_proj = ConvNormAct(wide, out_chs, activation="none")
        self.fuses = Fusion(self, "pw_proj")

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, ceil(Y / stride), ceil(X / stride), O]"""
        y = self.dw_mid(self.pw_exp(self.dw_start(x)))
        return add_narrowed(x, y, self.pw_proj, self.fuses) if self.has_skip else self.pw_proj(y)


class InvertedResidual(nn.Module):
    def __init__(
        self,
        in_chs: int,
        out_chs: int,
        rd_channels: int,
        dw_kernel_size: int = 3,
        stride: int = 1,
        exp_ratio: float = 1.0,
        activation: str = "silu",
    ) -> None:
        """rd_channels: of the reduced layer of squeeze and excitation."""
        super().__init__()
        wide = widened(in_chs, exp_ratio)
        self.has_skip = stride == 1 and in_chs == out_chs
        self.conv_pw = ConvNormAct(in_chs, wide, activation=activation)
        self.conv_dw = ConvNormAct(wide, wide, dw_kernel_size, stride, wide, activation)
        self.se = SqueezeExcite(wide, rd_channels)
        self.conv_pwl = ConvNormAct(wide, out_chs, activation="none")
        self.fuses = Fusion(self, "conv_dw", "se", "conv_pwl")

    def forward(self, x: Tensor) -> Tensor:
        """x [B, Y, X, C] -> [B, ceil(Y / stride), ceil(X / stride), O]"""
        y = self.conv_pw(x)
        if self.fuses and not x.is_meta:
            conv = self.conv_dw.conv
            how = (conv.stride, conv.padding, conv.groups, self.conv_dw.activation)
            y, mean = kernels.conv2d_activation_mean(y, conv.weight, self.conv_dw.bias, *how)
            return narrowed(y, self.conv_pwl, x if self.has_skip else None, self.se.gates(mean))
        y = self.conv_pwl(self.se(self.conv_dw(y)))
        return x + y if self.has_skip else y


def add_narrowed(x: Tensor, y: Tensor, projection: ConvNormAct, fuses: Fusion | bool) -> Tensor:
    """x + projection(y)"""
    return narrowed(y, projection, x) if fuses and not x.is_meta else x + projection(y)


def narrowed(
    y: Tensor, projection: ConvNormAct, residual: Tensor | None, gate_BC: Tensor | None = None
) -> Tensor:
    """residual + projection(y gate) in one kernel."""
    conv = projection.conv
    how = (conv.stride, conv.padding, conv.groups, projection.activation)
    return kernels.conv2d_activation(
        y, conv.weight, projection.bias, *how, gate_BC=gate_BC, residual_BYXO=residual
    )


def widened(channels: int, ratio: float) -> int:
    """The nearest multiple of 8, or the next one where that takes more than a tenth."""
    wanted = channels * ratio
    nearest = max(UNIT, int(wanted + UNIT / 2) // UNIT * UNIT)
    return nearest if nearest >= LEAST_SHARE * wanted else nearest + UNIT
