"""Frequencies of rotary embeddings and the table of their cosines and sines.

    f_j = theta^(-2j / R)                                           j < R/2, wavelength L_j = 2 pi / f_j
    llama3: L < original / high keeps f; L > original / low gives f / factor; between, with
            s = (original / L - low) / (high - low):  (1 - s) f / factor + s f
    yarn:   r f / factor + (1 - r) f, ramp r over the dimensions between beta_fast and beta_slow rotations of
            the original length; cosines and sines times an attention factor, 0.1 ln(factor) + 1 unless given
    proportional: R = head_dim; the first partial_rotary_factor R/2 frequencies are those above, the others 0:
            pairs lie R/2 apart, and the last ones stand still

Frequencies and angles in float32, in the order of operations in which checkpoints were trained: at position
100,000 a last-bit difference of a frequency is already 0.01 in the angle. Cosines and sines in at least
float32, then rounded once to the table's dtype.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fastkernels.errors import UsageError

# Alive as long as some model uses it: layers of one model share one table, and unloading the model frees it.
_tables: WeakValueDictionary[tuple[Any, ...], Tensor] = WeakValueDictionary()


def rotary_table(
    head_dim: int,
    max_position: int,
    rope_parameters: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """cos_sin_PR: P = max_position rows [cos | sin], R = head_dim * partial_rotary_factor (default 1); of the
    type `proportional`, head_dim.

    `rope_parameters` has Hugging Face's keys: rope_type (default | llama3 | yarn | proportional), rope_theta
    and what the type needs. On torch's default device unless one is given. Equal calls return one tensor:
    read it only. Raises UsageError for an unknown type or a missing key.
    """
    # "cuda" leaves the index open; the tensor's device has it, and it is part of the key.
    device = torch.empty(0, device=device).device
    key = head_dim, max_position, json.dumps(dict(rope_parameters), sort_keys=True), dtype, device
    table_PR = _tables.get(key)
    if table_PR is None:
        table_PR = _tables[key] = _build(head_dim, max_position, rope_parameters, dtype, device)
    return table_PR


def frequencies(head_dim: int, rope_parameters: Mapping[str, Any]) -> tuple[Tensor, float]:
    """(frequencies f_j in float32 on CPU, factor on cosines and sines)."""
    kind = rope_parameters.get("rope_type", "default")
    if kind not in _KINDS:
        raise UsageError(f"Unknown rope_type '{kind}'; there are {', '.join(_KINDS)}")
    try:
        part = 1.0 if kind == "proportional" else rope_parameters.get("partial_rotary_factor", 1.0)
        rotated = int(head_dim * part)
        exponents = torch.arange(0, rotated, 2, dtype=torch.int64, device="cpu").to(torch.float32) / rotated
        return _KINDS[kind](rope_parameters["rope_theta"] ** exponents, rotated, rope_parameters)
    except KeyError as error:
        raise UsageError(f"rope_parameters of type '{kind}' lack {error}") from error


def _default(inverse: Tensor, rotated: int, parameters: Mapping[str, Any]) -> tuple[Tensor, float]:
    return 1.0 / inverse, 1.0


def _llama3(inverse: Tensor, rotated: int, parameters: Mapping[str, Any]) -> tuple[Tensor, float]:
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    frequency = 1.0 / inverse
    wavelength = 2 * math.pi / frequency
    scaled = torch.where(wavelength > original / low, frequency / factor, frequency)
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * scaled / factor + smooth * scaled
    is_between = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(is_between, between, scaled), 1.0


def _yarn(inverse: Tensor, rotated: int, parameters: Mapping[str, Any]) -> tuple[Tensor, float]:
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        """The (fractional) dimension that turns this often over the original length."""
        turns = math.log(original / (rotations * 2 * math.pi))
        return rotated * turns / (2 * math.log(parameters["rope_theta"]))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    width = high - low or 0.001  # a step where both ends meet
    ramp = ((torch.arange(rotated // 2, dtype=torch.float32, device="cpu") - low) / width).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (factor * inverse) * (1 - keep) + 1.0 / inverse * keep, _attention_factor(factor, parameters)


def _proportional(inverse: Tensor, rotated: int, parameters: Mapping[str, Any]) -> tuple[Tensor, float]:
    turning = int(parameters["partial_rotary_factor"] * rotated // 2)
    frequency = 1.0 / inverse
    frequency[turning:] = 0.0
    return frequency, 1.0


def _attention_factor(factor: float, parameters: Mapping[str, Any]) -> float:
    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = parameters.get("attention_factor")
    if given is not None:
        return given
    scale, scale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return grown(scale) / grown(scale_all) if scale and scale_all else grown(1)


_KINDS: dict[str, Callable[[Tensor, int, Mapping[str, Any]], tuple[Tensor, float]]] = {
    "default": _default,
    "llama3": _llama3,
    "yarn": _yarn,
    "proportional": _proportional,
}


# A table may be built under inference mode (an engine) and used later outside: it must be an ordinary tensor.
@torch.inference_mode(False)
@torch.no_grad()
def _build(
    head_dim: int, max_position: int, parameters: Mapping[str, Any], dtype: torch.dtype, device: torch.device
) -> Tensor:
    frequency, amplitude = frequencies(head_dim, parameters)
    if device.type == "meta":
        return torch.empty(max_position, 2 * len(frequency), dtype=dtype, device=device)
    positions = torch.arange(max_position, dtype=torch.float32, device=device)
    angles = torch.outer(positions, frequency.to(device)).to(torch.promote_types(dtype, torch.float32))
    return torch.cat((angles.cos() * amplitude, angles.sin() * amplitude), dim=-1).to(dtype)
