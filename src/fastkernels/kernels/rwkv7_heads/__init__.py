"""What the heads of RWKV-7 do around their recurrence, and for one token of each row all of it at once.

    w  = -exp(-1/2) sigmoid(w);  a = sigmoid(a)                         rwkv7_inputs
    v  = v + (v_first - v) sigmoid(gate)                                but in the first layer
    kk = (k k_k) / |k k_k| of a head;  k = k (1 + (a - 1) k_a)

    y = (group_norm(o) + (sum_c r k r_k) v) g                           rwkv7_output, the sum over a head

`rwkv7_step` takes what the layer's input was projected to, and does the rest:

    w = tanh(low_w) W_w^T + b_w;  a = low_a W_a^T + b_a;  gate = low_v W_v^T + b_v;  g = sigmoid(low_g) W_g^T
    y = rwkv7_output(recurrent_rwkv7(r, *rwkv7_inputs(k, v, w, a, gate)))

T tokens · B rows of the step · R rows of the pool · D channels · H heads of K = D / H · low-rank parts of any
width. In float32 (float64 stays float64), rounded once to the dtype of k; an implementation of `rwkv7_step`
may also round what is computed on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fastkernels.kernels.base import Implementation, Kernel
from fastkernels.kernels.compiled import compiled
from fastkernels.kernels.group_norm import group_norm
from fastkernels.kernels.rwkv7 import reference
from fastkernels.kernels.work import Tally

STEEPEST = -math.exp(-0.5)  # of log decays
SHORTEST = 1e-12  # length that a key is divided by


class Inputs(NamedTuple):
    """What the recurrence takes beside r, each [T, D]."""

    w: Tensor
    k: Tensor
    v: Tensor
    kk: Tensor
    a: Tensor


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)


def _reference_inputs(
    k_TD: Tensor,
    v_TD: Tensor,
    w_TD: Tensor,
    a_TD: Tensor,
    gate_TD: Tensor | None,
    v_first_TD: Tensor | None,
    k_k_D: Tensor,
    k_a_D: Tensor,
    heads: int,
) -> tuple[Tensor, ...]:
    k, v, w, a, k_k, k_a = _wide(k_TD, v_TD, w_TD, a_TD, k_k_D, k_a_D)
    a = torch.sigmoid(a)
    if gate_TD is not None and v_first_TD is not None:
        gate, v_first = _wide(gate_TD, v_first_TD)
        v = v + (v_first - v) * torch.sigmoid(gate)
    kk_THK = (k * k_k).unflatten(-1, (heads, -1))
    kk_THK = kk_THK / kk_THK.square().sum(-1, keepdim=True).sqrt().clamp(min=SHORTEST)
    found = (STEEPEST * torch.sigmoid(w), k * (1 + (a - 1) * k_a), v, kk_THK.flatten(-2), a)
    return tuple(x.to(k_TD.dtype).contiguous() for x in found)


def _reference_output(
    o_TD: Tensor,
    r_TD: Tensor,
    k_TD: Tensor,
    v_TD: Tensor,
    g_TD: Tensor,
    r_k_HK: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
) -> Tensor:
    o, r, k, v, g, r_k, weight, bias = _wide(o_TD, r_TD, k_TD, v_TD, g_TD, r_k_HK, weight_D, bias_D)
    normed = group_norm(o[:, None, None], weight, bias, len(r_k), eps, impl="reference")[:, 0, 0]
    r, k, v = (x.unflatten(-1, r_k.shape) for x in (r, k, v))
    kept = (r * k * r_k).sum(-1, keepdim=True) * v
    return ((normed + kept.flatten(-2)) * g).to(o_TD.dtype).contiguous()


def _reference_step(
    projected_BN: Tensor,
    v_first_BD: Tensor | None,
    ups: Sequence[Tensor],
    biases: Sequence[Tensor],
    k_k_D: Tensor,
    k_a_D: Tensor,
    r_k_HK: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    state_RHKK: Tensor,
    rows_B: Tensor,
    eps: float,
) -> Tensor:
    projected, *ups = _wide(projected_BN, *ups)
    biases = _wide(*biases)
    d = len(k_k_D)
    w_up, a_up, g_up, *v_up = ups
    ranks = [up.shape[1] for up in (w_up, *v_up, a_up, g_up)]
    r, w, k, v, *gate, a, g = projected.split([d, ranks[0], d, d, *ranks[1:]], -1)
    w, a = F.linear(torch.tanh(w), w_up, biases[0]), F.linear(a, a_up, biases[1])
    g = F.linear(torch.sigmoid(g), g_up)
    mixed = (F.linear(gate[0], v_up[0], biases[2]), v_first_BD) if gate else (None, None)
    inputs = Inputs(*_reference_inputs(k, v, w, a, *mixed, k_k_D, k_a_D, len(r_k_HK)))
    r_BHK, w_BHK, k_BHK, v_BHK, kk_BHK, a_BHK = (x.unflatten(-1, r_k_HK.shape) for x in (r, *inputs))
    args = (r_BHK, w_BHK, k_BHK, v_BHK, kk_BHK, a_BHK, state_RHKK, rows_B)
    o = reference.recurrent_rwkv7(*args).flatten(1)
    y_BD = _reference_output(o, r, inputs.k, inputs.v, g, r_k_HK, weight_D, bias_D, eps)
    return y_BD.to(projected_BN.dtype)


def _step_work(
    tally: Tally, projected: Tensor, v_first: Tensor | None, ups: Sequence[Tensor], *rest: object
) -> None:
    *_, state, rows_B, _ = rest
    assert isinstance(state, Tensor)
    assert isinstance(rows_B, Tensor)
    tally.multiply(projected, len(projected) * (2 * sum(up.numel() for up in ups) + 8 * state[0].numel()))
    tally.advance(state, tally.decodes(rows_B))


_rwkv7_inputs = Kernel(
    "rwkv7_inputs",
    "(Tensor k, Tensor v, Tensor w, Tensor a, Tensor? gate, Tensor? v_first, Tensor k_k, Tensor k_a, "
    "int heads) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _reference_inputs,
    fake=lambda k_TD, *_: tuple(k_TD.new_empty(k_TD.shape) for _ in range(5)),
    implementations=(
        Implementation("triton", f"{__name__}.triton"),
        Implementation("inductor", compiled(_reference_inputs)),
    ),
    rows=lambda k_TD, *_: k_TD.shape[0],
)

_rwkv7_output = Kernel(
    "rwkv7_output",
    "(Tensor o, Tensor r, Tensor k, Tensor v, Tensor g, Tensor r_k, Tensor weight, Tensor bias, float eps) "
    "-> Tensor",
    _reference_output,
    fake=lambda o_TD, *_: o_TD.new_empty(o_TD.shape),
    implementations=(Implementation("triton", f"{__name__}.triton"),),
    rows=lambda o_TD, *_: o_TD.shape[0],
)

_rwkv7_step = Kernel(
    "rwkv7_step",
    "(Tensor projected, Tensor? v_first, Tensor[] ups, Tensor[] biases, Tensor k_k, Tensor k_a, Tensor r_k, "
    "Tensor weight, Tensor bias, Tensor(a!) state, Tensor rows, float eps) -> Tensor",
    _reference_step,
    fake=lambda projected_BN, v_first, ups, biases, k_k_D, *_: projected_BN.new_empty(
        len(projected_BN), len(k_k_D)
    ),
    implementations=(Implementation("triton", f"{__name__}.step"),),
    rows=lambda projected_BN, *_: projected_BN.shape[0],
    work=_step_work,
)


def rwkv7_inputs(
    k_TD: Tensor,
    v_TD: Tensor,
    w_TD: Tensor,
    a_TD: Tensor,
    gate_TD: Tensor | None,
    v_first_TD: Tensor | None,
    k_k_D: Tensor,
    k_a_D: Tensor,
    heads: int,
    *,
    impl: str | None = None,
) -> Inputs:
    """w, k, v, kk and a, contiguous; rows may be strided. gate and v_first: both or, in the first layer,
    none.

    Raises KernelError when `impl` cannot serve the call.
    """
    args = (k_TD, v_TD, w_TD, a_TD, gate_TD, v_first_TD, k_k_D, k_a_D, heads)
    return Inputs(*_rwkv7_inputs(*args, impl=impl))


def rwkv7_output(
    o_TD: Tensor,
    r_TD: Tensor,
    k_TD: Tensor,
    v_TD: Tensor,
    g_TD: Tensor,
    r_k_HK: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """y_TD, contiguous; rows may be strided. k and v are those that the recurrence took.

    Raises KernelError when `impl` cannot serve the call.
    """
    return _rwkv7_output(o_TD, r_TD, k_TD, v_TD, g_TD, r_k_HK, weight_D, bias_D, eps, impl=impl)


def rwkv7_step(
    projected_BN: Tensor,
    v_first_BD: Tensor | None,
    ups: Sequence[Tensor],
    biases: Sequence[Tensor],
    k_k_D: Tensor,
    k_a_D: Tensor,
    r_k_HK: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    state_RHKK: Tensor,
    rows_B: Tensor,
    eps: float,
    *,
    impl: str | None = None,
) -> Tensor:
    """y_BD of one token for each row; each row's state advances in place (`recurrent_rwkv7`).

    projected: r, low_w, k, v, low_v, low_a, low_g side by side; without low_v in the first layer. ups: W_w,
    W_a, W_g, and W_v but in the first layer, each [D, width]; biases: b_w, b_a, and b_v. Raises KernelError
    when `impl` cannot serve the call.
    """
    parameters = (list(ups), list(biases), k_k_D, k_a_D, r_k_HK, weight_D, bias_D)
    return _rwkv7_step(projected_BN, v_first_BD, *parameters, state_RHKK, rows_B, eps, impl=impl)
