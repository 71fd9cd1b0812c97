"""Activations of float32 values in registers, in Triton: what `activation` and `glu` share.

    gelu_tanh(x) = x sigmoid(2u),  u = sqrt(2/pi) (x + 0.044715 x^3)          as tanh(u) = 2 sigmoid(2u) - 1
    log_sigmoid(x) = min(x, 0) - log1p(e),  e = exp(-|x|)

With v = 1 + e rounded, log1p(e) = log(v) e / (v - 1) is accurate where log(v) alone has lost all digits of e.
"""

from __future__ import annotations

import triton
import triton.language as tl

SQRT_HALF = tl.constexpr(0.7071067811865476)
TWO_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.044715)
QUICK = tl.constexpr(1.702)


@triton.jit
def activated(x, NAME: tl.constexpr):
    tl.static_assert(
        (NAME == "silu")
        | (NAME == "gelu")
        | (NAME == "gelu_tanh")
        | (NAME == "log_sigmoid")
        | (NAME == "quick_gelu")
    )
    if NAME == "silu":
        y = x * tl.sigmoid(x)
    elif NAME == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))
    elif NAME == "gelu_tanh":
        y = x * tl.sigmoid((x + x * x * x * CUBIC) * TWO_SQRT_2_OVER_PI)
    elif NAME == "quick_gelu":
        y = x * tl.sigmoid(x * QUICK)
    else:
        e = tl.exp(-tl.abs(x))
        v = 1.0 + e
        y = tl.minimum(x, 0.0) - tl.where(v == 1.0, e, tl.log(v) * (e / tl.where(v == 1.0, 1.0, v - 1.0)))
    return y
