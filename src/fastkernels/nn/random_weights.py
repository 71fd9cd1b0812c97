"""Seeded random weights, bit for bit the same on every device: a hash of (seed, name, index) into a table.

    norm weights   uniform 0.5 .. 1.5            vectors that are no bias; of an `unscaled_.._norm` of K
                                                 features K^(1/4) times as small, of a `signed_norm` with
                                                 random signs
    biases         normal, std 0.1               means that a norm takes off, too
    embeddings     normal, std 1                 matrices below an `embed...` module, not tied to a head; an
                                                 `..._embedder` is a projection
    matrices       normal, std 1/sqrt(fan_in)    fan_in: elements of one output row, in a stack [E, N, K]
                                                 below an `experts` module K, of an `unscaled_qkv_proj`
                                                 8 times as many
    filters        normal, std sqrt(2.6/fan_in)  of convolutions; neighbouring channels are opposite; fan_in
                                                 counts 6 or 10 times at the end of a residual branch
    time steps     log-uniform 0.001 .. 0.1      of a scan over states: `dt_bias`, `dt_proj.bias` are their
                                                 softplus^-1
    decay rates    log-uniform 1 .. 16           of such a scan: `A_log` are their logarithms
    sinks          uniform 0 .. 8                logits that join a softmax of up to thousands of others
    codes          uniform bytes                 of weights of four bits, uint8; their scales, uint8
                                                 `..._scale`, are three exponents that make them matrices
    ternary        -1, 0, 1, equally likely      packed in uint8; their scales are as norm weights, times what
                                                 makes a matrix of std 1/sqrt(fan_in)
    shares         uniform 0 .. 1                of the token before in a shifted one: `x_x`, `x_k`
    splats         uniform                       logarithms of sizes and logits of opacities (splats.py)
    hash tables    uniform -48 .. 48             of grids (radiance.py)
    occupancy      cubes of cells                bits of a `density_grid` (occupancy.py)

Values depend on the parameter's first name, not on its position in the model or on other parameters. A rank's
part of a parameter (partition.py) has the values that the whole one has there, and they alone are drawn. A
normal value is one of 65,536 equally likely quantiles of the normal distribution, so |value| < 4.4 std.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from fastkernels.nn.filters import is_filters
from fastkernels.nn.occupancy import is_occupancy, random_grid
from fastkernels.nn.partition import Part, part_of
from fastkernels.nn.radiance import table_range
from fastkernels.nn.splats import splat_range
from fastkernels.nn.ternary_weights import BYTES, is_ternary, packed_digits, usual_scale

BIAS_STD = 0.1
# SiLU keeps between 0.25 and 0.34 of a variance around its mean, so a deep net of convolutions whose norms
# are folded away neither fades nor overflows. Filters that saw the mean would pass it on, and all images
# would look alike.
FILTER_GAIN = 2.6
# Behind the last convolution of an inverted residual or a bottleneck nothing reduces the variance before it
# is added to that of the shortcut: with filters as of others 60 blocks made logits of 1e13, with these of
# 1.4. Before some `conv_pwl` are gates of squeeze and excitation, which reduce it.
BRANCH_FAN_INS = {"pw_proj.": 10, "conv_pwl.": 6, "widen.": 6}
# Scores that are not divided by the root of the head size, 8 of 64 features, come from weights that training
# keeps small. With ordinary random ones the softmax picks single keys: in bfloat16 24 layers of T5 were off
# by 0.89 of their answer's size, with these by 0.025.
UNSCALED_FAN_IN = 8
# As Mamba begins its training, which keeps states for tens to thousands of tokens. With steps around 0.8 a
# state holds three tokens, large, and what is read from it multiplies five functions of one input: in
# bfloat16 32 layers of Jamba were off by 0.74 of their answer's size, with these by 0.10.
TIME_STEPS, DECAY_RATES = (0.001, 0.1), (1.0, 16.0)
# The sink of a head takes from nothing to a half of its attention.
SINKS = (0.0, 8.0)
# Of the 16 numbers of four bits, and of powers of two below, at and above the middle one.
_CODES_STD, _CODES_OF_A_SCALE = 2.93, 32
_CHUNK = 1 << 24  # elements hashed at a time: 64 MiB of int32 for each temporary
_LEVELS = 1 << 16


@torch.no_grad()
def random_weights(model: nn.Module, seed: int) -> None:
    """Fill every parameter of `model` in place."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    uniform = (torch.arange(_LEVELS, dtype=torch.float64, device="cpu") + 0.5) / _LEVELS
    normal = torch.special.ndtri(uniform)
    tables = {
        "norm": uniform + 0.5,
        "signed": (2 * uniform - 1).sign() * (0.5 + (2 * uniform - 1).abs()),
        "shares": uniform,
        "steps": _softplus_inverse(_log_uniform(uniform, TIME_STEPS).exp()),
        "decay": _log_uniform(uniform, DECAY_RATES),
        "sinks": SINKS[0] + uniform * (SINKS[1] - SINKS[0]),
        "codes": torch.arange(_LEVELS, device="cpu") % 256,
        "ternary": packed_digits(torch.arange(_LEVELS, device="cpu") % BYTES),
    }
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_occupancy(name):
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            parameter.copy_(random_grid(tuple(parameter.shape), int.from_bytes(digest[:7], "little")))
            continue
        kind = _kind(parameter, names[id(parameter)])
        table, part = tables.get(kind), part_of(parameter)
        whole = parameter if part is None else parameter.new_empty(part.shape, device="meta")
        if table is not None and is_unscaled(name):
            table = table * unscaled_gain(whole)
        if (bounds := splat_range(name, whole) or table_range(name)) is not None:
            table = bounds[0] + uniform * (bounds[1] - bounds[0])
        elif kind == "scales":
            low, high = scale_exponents(whole)
            table = low + torch.arange(_LEVELS, device="cpu") % (high - low)
        elif table is None:
            fan_in = _fan_in(whole, names[id(parameter)])
            std = {"bias": BIAS_STD, "embedding": 1.0, "matrix": fan_in**-0.5}
            table = normal * (std | {"filters": (FILTER_GAIN / fan_in) ** 0.5})[kind]
        if (scale := usual_scale(name, parameters)) is not None:
            table = table * scale
        is_paired = is_filters(parameter) and parameter.shape[-1] > 1
        _fill(parameter, table.to(torch.float32), seed, name, is_paired, part)


def _log_uniform(uniform: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Logarithms of what lies within bounds."""
    low, high = map(math.log, bounds)
    return low + uniform * (high - low)


def _softplus_inverse(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


def _kind(parameter: Tensor, names: list[str]) -> str:
    if is_ternary(names[0], parameter):
        return "ternary"
    if is_time_step(names[0]):
        return "steps"
    if is_decay_rate(names[0]):
        return "decay"
    if is_packed(parameter):
        return "scales" if names[0].endswith("_scale") else "codes"
    if is_sink(names[0]):
        return "sinks"
    if is_signed(names[0]):
        return "signed"
    if is_share(names[0]):
        return "shares"
    if names[0].rpartition(".")[2] == "bias" or parameter.dim() <= 1:
        return "bias" if names[0].endswith(("bias", "running_mean")) else "norm"
    if is_filters(parameter):
        return "filters"
    return "embedding" if all(map(is_table, names)) else "matrix"


def _fan_in(parameter: Tensor, names: list[str]) -> int:
    if parameter.dim() > 2 and any("experts" in name for name in names):
        return parameter.shape[-1]
    fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
    fan_in *= branch_fan_in(names[0])
    return UNSCALED_FAN_IN * fan_in if any(map(is_unscaled, names)) else fan_in


def is_time_step(name: str) -> bool:
    """Whether a parameter is what softplus makes the time steps of a scan of."""
    return name.endswith(("dt_bias", "dt_proj.bias"))


def is_decay_rate(name: str) -> bool:
    """Whether a parameter holds logarithms of a scan's decay rates."""
    return name.endswith("A_log")


def is_share(name: str) -> bool:
    """Whether a parameter holds shares of the token before in a shifted one."""
    return name.rpartition(".")[2] in ("x_x", "x_k")


def is_sink(name: str) -> bool:
    """Whether a parameter holds logits that join the softmax of attention heads."""
    return name.endswith("sinks")


def is_packed(parameter: Tensor) -> bool:
    """Whether a parameter holds codes of weights, or exponents of their scales."""
    return parameter.dtype == torch.uint8


def scale_exponents(scales: Tensor) -> tuple[int, int]:
    """Of scales [..., G]: from where to before where exponents lie for weights of scale 1/sqrt(fan_in)."""
    fan_in = scales.shape[-1] * _CODES_OF_A_SCALE
    middle = 127 + math.floor(math.log2(fan_in**-0.5 / _CODES_STD))
    return middle - 1, middle + 2


def is_table(name: str) -> bool:
    """Whether a parameter holds a vector for each of many ids or places, and is no projection."""
    return "embed" in name and "embedder" not in name


def is_unscaled(name: str) -> bool:
    """Whether a parameter makes, or normalises, the queries and keys of scores that are not scaled."""
    return "unscaled_qkv_proj." in name or "unscaled_q_norm." in name or "unscaled_k_norm." in name


def is_signed(name: str) -> bool:
    """Whether a parameter is the weight of a norm before a head that is the embedding, whose rows enter the
    residual stream as large as what layers add. With gains alone every token would be likest to itself, and
    texts would repeat one token."""
    return "signed_norm." in name


def unscaled_gain(norm: Tensor) -> float:
    """Of a norm's weight: that of the queries and that of the keys together divide a score by sqrt(K)."""
    return norm.numel() ** -0.25


def branch_fan_in(name: str) -> int:
    """How many times the fan_in of a convolution counts: more than once at the end of a residual branch."""
    return next((times for part, times in BRANCH_FAN_INS.items() if part in name), 1)


def _fill(
    parameter: Tensor, table: Tensor, seed: int, name: str, is_paired: bool, part: Part | None = None
) -> None:
    """is_paired: of two neighbouring elements the second is the first's negative, so a row sums to zero.
    part: the places that the parameter has of the whole one."""
    if part is not None and not part.runs:
        parameter.zero_()
        return
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    before, after = (int.from_bytes(digest[i : i + 4], "little", signed=True) for i in (0, 4))
    table = table.to(parameter.device, parameter.dtype)
    flat = parameter.detach().view(-1)
    most = flat.numel() if part is None else math.prod(part.shape)
    assert most < 1 << 31, "the index of an element is hashed as int32"
    for start in range(0, flat.numel(), _CHUNK):
        stop = min(start + _CHUNK, flat.numel())
        index = torch.arange(start, stop, dtype=torch.int32, device=parameter.device)
        if part is not None:
            index = _in_the_whole(index, part)
        sign = 1 - 2 * (index & 1) if is_paired else None
        if is_paired:
            index >>= 1
        level = (
            _mix(_mix(index.bitwise_xor_(before)).add_(after))
            .bitwise_right_shift_(16)
            .bitwise_and_(_LEVELS - 1)
        )
        values = table.index_select(0, level)
        flat[start:stop] = values if sign is None else values * sign


def _in_the_whole(index: Tensor, part: Part) -> Tensor:
    """Where elements of a part lie in the whole parameter."""
    inner = math.prod(part.shape[part.dim + 1 :])
    places = torch.cat([torch.arange(run.start, run.stop, dtype=torch.int32) for run in part.runs])
    line, outer = index // inner, index // (inner * part.length)
    here = places.to(index.device).index_select(0, line % part.length)
    return (outer * part.shape[part.dim] + here).mul_(inner).add_(index % inner)


def _mix(x: Tensor) -> Tensor:
    """In place: the finaliser of MurmurHash3, a bijection of wrapping 32-bit integers."""
    _fold(x, 16).mul_(0x85EBCA6B - (1 << 32))
    _fold(x, 13).mul_(0xC2B2AE35 - (1 << 32))
    return _fold(x, 16)


def _fold(x: Tensor, shift: int) -> Tensor:
    # A shift of int32 copies the sign; the mask makes it that of an unsigned number.
    return x.bitwise_xor_(x.bitwise_right_shift(shift).bitwise_and_((1 << (32 - shift)) - 1))
