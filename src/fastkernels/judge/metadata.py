"""What a result is besides its values: shape, dtype, strides and storage.

`describe` runs in the worker, beside the tensors, and returns plain data; `check` runs in the judge and
compares the descriptions of both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fastkernels.judge.verdict import Verdict
from fastkernels.records import Record

# Methods of torch's C type, which cannot be replaced.
_layout = torch._C.TensorBase.layout.__get__  # type: ignore[attr-defined]
_UNLIKE_MEMORY = (
    ("nested", torch._C.TensorBase.is_nested.__get__),  # type: ignore[attr-defined]
    ("negated view", torch._C.TensorBase.is_neg),
    ("conjugated view", torch._C.TensorBase.is_conj),
    ("zeros without memory", torch._C.TensorBase._is_zerotensor),
)
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
    if told := unlike_memory(output):
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


def unlike_memory(x: Tensor) -> str | None:
    """What makes the values of x others than what lies in its memory, laid out by its strides; None of a
    plain tensor."""
    if _layout(x) is not torch.strided:
        return str(_layout(x))
    return next((told for told, holds in _UNLIKE_MEMORY if holds(x)), None)


def check(candidate: Mapping[str, Description], baseline: Mapping[str, Description]) -> Verdict | None:
    """The first difference from the baseline that the contract forbids, or None. An output may alias an input
    only where the baseline's does."""
    for name in sorted(candidate.keys() & baseline.keys()):  # a list instead of a tuple is a single result
        found, expected = candidate[name], baseline[name]
        if found.type_name != expected.type_name:
            return Verdict.wrong("dtype", f"{name} is a {found.type_name}, not a plain {expected.type_name}")
    if set(candidate) != set(baseline):
        return Verdict.wrong("shape", f"returned {_list(candidate)}; the baseline returns {_list(baseline)}")
    for name, expected in baseline.items():
        found = candidate[name]
        if found.shape != expected.shape:
            return Verdict.wrong(
                "shape", f"{name} has shape {list(found.shape)}, expected {list(expected.shape)}"
            )
        if found.dtype != expected.dtype:
            return Verdict.wrong("dtype", f"{name} is {found.dtype}, expected {expected.dtype}")
        if found.device.partition(":")[0] != expected.device.partition(":")[0]:
            return Verdict.wrong("dtype", f"{name} lies on {found.device}, expected {expected.device}")
        if extra := sorted(set(found.aliases) - set(expected.aliases)):
            return Verdict.wrong("alias", f"{name} shares memory with {', '.join(extra)}")
        if found.overlaps_itself and not expected.overlaps_itself:
            return Verdict.wrong(
                "alias", f"{name} is an expanded view: several elements share one place in memory"
            )
    return None


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
    """With the type of what is no tensor: None, where another module returns two things, is a third."""
    told = (name if d.type_name == "Tensor" else f"{name} ({d.type_name})" for name, d in names.items())
    return ", ".join(told) or "nothing"
