"""What a result is besides its values: shape, dtype, strides, storage, and what happened to the inputs.

`describe` runs in the worker, beside the tensors, and returns plain data; `check` runs in the judge and
compares the descriptions of both sides. `Fingerprint` detects a changed input without keeping a second copy
of it: the weights of its sum come from a seed that only the judge knows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fastkernels.judge.verdict import Verdict
from fastkernels.records import Record

_SLICE_WORDS = 1 << 22
Extent = Annotated[int, Field(ge=0, lt=2**63)]  # as a tensor has them: a worker may say what it likes


class Description(Record):
    """A tensor as plain data. `aliases`: names of inputs whose memory it shares; `overlaps_itself`: expanded
    storage."""

    shape: tuple[Extent, ...]
    dtype: str
    device: str
    stride: tuple[Extent, ...]
    type_name: str
    aliases: tuple[str, ...] = ()
    overlaps_itself: bool = False


def describe(output: object, inputs: Mapping[str, Tensor]) -> Description:
    """`output` as plain data. Anything that is no plain tensor gets an empty shape and its type's name: a
    subclass may answer what it likes, and a nested tensor has no sizes that are numbers."""
    kind = type(output)
    if kind not in (Tensor, torch.nn.Parameter) or not isinstance(output, Tensor):
        return Description(shape=(), dtype="", device="", stride=(), type_name=kind.__name__)
    if output.layout != torch.strided or output.is_nested:
        told = "nested" if output.is_nested else output.layout
        return Description(shape=(), dtype="", device="", stride=(), type_name=f"{kind.__name__} ({told})")
    return Description(
        shape=tuple(output.shape),
        dtype=str(output.dtype).removeprefix("torch."),
        device=str(output.device),
        stride=tuple(output.stride()),
        type_name="Tensor",
        aliases=tuple(name for name, tensor in inputs.items() if _share(output, tensor)),
        overlaps_itself=any(s == 0 and n > 1 for s, n in zip(output.stride(), output.shape)),
    )


def check(
    candidate: Mapping[str, Description], baseline: Mapping[str, Description], strides: Sequence[str] = ()
) -> Verdict | None:
    """The first difference from the baseline that the contract forbids, or None.

    `strides`: names of outputs whose strides are part of the contract. An output may alias an input only
    where the baseline's does.
    """
    if set(candidate) != set(baseline):
        return Verdict.wrong("shape", f"Returned {_list(candidate)}; the baseline returns {_list(baseline)}")
    for name, expected in baseline.items():
        found = candidate[name]
        if found.type_name != expected.type_name:
            return Verdict.wrong("dtype", f"{name} is a {found.type_name}, not a plain {expected.type_name}")
        if found.shape != expected.shape:
            return Verdict.wrong(
                "shape", f"{name} has shape {list(found.shape)}, expected {list(expected.shape)}"
            )
        if found.dtype != expected.dtype:
            return Verdict.wrong("dtype", f"{name} is {found.dtype}, expected {expected.dtype}")
        if found.device.partition(":")[0] != expected.device.partition(":")[0]:
            return Verdict.wrong("dtype", f"{name} lies on {found.device}, expected {expected.device}")
        if name in strides and found.stride != expected.stride:
            return Verdict.wrong("stride", f"{name} has strides {found.stride}, expected {expected.stride}")
        if extra := sorted(set(found.aliases) - set(expected.aliases)):
            return Verdict.wrong("alias", f"{name} shares memory with {', '.join(extra)}")
        if found.overlaps_itself and not expected.overlaps_itself:
            return Verdict.wrong(
                "alias", f"{name} is an expanded view: several elements share one place in memory"
            )
    return None


def mutated(
    before: Mapping[str, int], after: Mapping[str, int], declared: Sequence[str] = ()
) -> Verdict | None:
    """WRONG(mutated_input) for inputs whose fingerprint changed although the task does not declare them
    mutated."""
    changed = [name for name, print_ in before.items() if name not in declared and after.get(name) != print_]
    if not changed:
        return None
    return Verdict.wrong("mutated_input", f"The call changed its input {', '.join(changed)}")


class Fingerprint:
    """A 64-bit sum of a tensor's bytes with secret weights.

        h(x) = sum_i w_(i mod m) v_(i div m) x_i   mod 2^64,      x_i the 32-bit words, w and v odd and random

    One changed word always changes the sum (its weight is odd); whoever does not know `seed` cannot make
    several changes cancel.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._weights: dict[torch.device, Tensor] = {}

    def __call__(self, x: Tensor) -> int:
        words = _words(x)
        weights = self._on(x.device, len(words))
        total = torch.zeros((), dtype=torch.int64, device=x.device)
        slices = random.Random(self._seed)
        for start in range(0, len(words), _SLICE_WORDS):
            part = words[start : start + _SLICE_WORDS].to(torch.int64)
            total += (part * weights[: len(part)]).sum() * (2 * slices.randrange(-(2**61), 2**61) + 1)
        return int(total)

    def all(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        return {name: self(tensor) for name, tensor in tensors.items()}

    def _on(self, device: torch.device, words: int) -> Tensor:
        size = min(words, _SLICE_WORDS)
        known = self._weights.get(device)
        if known is None or len(known) < size:
            generator = torch.Generator(device="cpu").manual_seed(self._seed)
            drawn = torch.randint(-(2**62), 2**62, (size,), generator=generator, dtype=torch.int64)
            known = self._weights[device] = (drawn * 2 + 1).to(device)
        return known


def _words(x: Tensor) -> Tensor:
    """The bytes of x's elements, in index order, as int32 words (the last one padded with zeros)."""
    raw = x.detach().contiguous().reshape(-1).view(torch.uint8)
    if missing := -len(raw) % 4:
        raw = torch.cat([raw, raw.new_zeros(missing)])
    return raw.view(torch.int32)


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether the memory that a and b reach overlaps (not only their storages: two slices of one buffer may
    not)."""
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    a_low, a_high = _reach(a)
    b_low, b_high = _reach(b)
    return a_low < b_high and b_low < a_high


def _reach(x: Tensor) -> tuple[int, int]:
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _list(names: Mapping[str, Description]) -> str:
    return ", ".join(names) or "nothing"
