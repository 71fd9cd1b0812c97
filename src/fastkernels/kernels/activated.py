"""Activations of float32 values in registers, in Triton: what `activation` and `glu` share.

    gelu(x) = x Phi(x),  Phi(x) = 1 - Phi(-x)
    Phi(-a) = exp(-a^2/2) P(t),  t = 1 / (1 + 0.4 a)                          for a >= 0
    gelu_tanh(x) = x sigmoid(2u),  u = sqrt(2/pi) (x + 0.044715 x^3)          as tanh(u) = 2 sigmoid(2u) - 1
    log_sigmoid(x) = min(x, 0) - log1p(e),  e = exp(-|x|)
    mish(x) = x n / (n + 2),  n = u (u + 2),  u = exp(min(x, 20)): beyond it the quotient is 1
    relu(x) = max(x, 0), relu2(x) = relu(x)^2, NaN stays NaN
    tanh(x) = sign(x) (1 - q) / (1 + q),  q = exp(-2 |x|);  x - x^3/3 + 2 x^5/15 - 17 x^7/315 + 62 x^9/2835
    for |x| < 0.25

With v = 1 + e rounded, log1p(e) = log(v) e / (v - 1) is accurate where log(v) alone has lost all digits of e.

Phi is the normal distribution; its tail, computed by itself, keeps the digits that 1 + erf cancels. P is our
own fit to erfcx(a / sqrt 2) / 2 for a <= 13.2, where exp(-a^2/2) stops being a normal number of float32. Of
degree 8 with float32 coefficients, its worst relative error is 6.7e-8, within 1 % of the least. The 0.4 is
where that is small and rounding t costs Phi(-a) at most twice as much. Far out the rounded argument of exp
costs more, 5e-6 at a = 10.
"""

# Triton types static_range as nothing to iterate over.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

TAIL_STEEPNESS = tl.constexpr(0.4)
TAIL = tl.constexpr((  # the coefficients of P, from t^8 down
    -0.0400750861, 0.202647433, -0.377395988, 0.254658788, -0.0145665202,
    0.159201503, 0.155619279, 0.159923464, -1.29060236e-05,
))  # fmt: skip
DEGREE = tl.constexpr(8)
HALF_LOG2_E = tl.constexpr(0.7213475204444817)
TWO_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.044715)
QUICK = tl.constexpr(1.702)


@triton.jit
def normal_tail(a):
    """Phi(-a) for a >= 0. On Hopper a division costs six instructions more than the square of a reciprocal
    root, exp four more than exp2: together a third of this activation."""
    root = tl.rsqrt(1.0 + a * TAIL_STEEPNESS)
    t = root * root
    polynomial = t * TAIL[0] + TAIL[1]
    for k in tl.static_range(2, DEGREE + 1):
        polynomial = polynomial * t + TAIL[k]
    return tl.exp2(a * a * -HALF_LOG2_E) * polynomial


@triton.jit
def tanh(x):
    """1 - q cancels where x is small: there the series, whose error is 9e-9 of it at 0.25."""
    square = x * x
    series = x + x * square * (-1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * 62.0 / 2835)))
    q = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - q) / (1.0 + q)
    return tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0.0, -far, far))


@triton.jit
def activated(x, NAME: tl.constexpr):
    tl.static_assert(
        (NAME == "silu")
        | (NAME == "gelu")
        | (NAME == "gelu_tanh")
        | (NAME == "log_sigmoid")
        | (NAME == "mish")
        | (NAME == "quick_gelu")
        | (NAME == "relu")
        | (NAME == "relu2")
        | (NAME == "sigmoid")
        | (NAME == "tanh")
    )
    if NAME == "silu":
        y = x * tl.sigmoid(x)
    elif NAME == "gelu":
        tail = normal_tail(tl.abs(x))
        y = x * tl.where(x < 0.0, tail, 1.0 - tail)
    elif NAME == "gelu_tanh":
        y = x * tl.sigmoid((x + x * x * x * CUBIC) * TWO_SQRT_2_OVER_PI)
    elif NAME == "mish":
        u = tl.exp(tl.minimum(x, 20.0))
        n = u * (u + 2.0)
        y = x * (n / (n + 2.0))
    elif NAME == "quick_gelu":
        y = x * tl.sigmoid(x * QUICK)
    elif NAME == "relu":
        y = tl.where(x < 0.0, 0.0, x)
    elif NAME == "relu2":
        y = tl.where(x < 0.0, 0.0, x * x)
    elif NAME == "sigmoid":
        y = tl.sigmoid(x)
    elif NAME == "tanh":
        y = tanh(x)
    else:
        e = tl.exp(-tl.abs(x))
        v = 1.0 + e
        y = tl.minimum(x, 0.0) - tl.where(v == 1.0, e, tl.log(v) * (e / tl.where(v == 1.0, 1.0, v - 1.0)))
    return y
