"""Candidates that compute nothing. Each spoils one output and leaves the others right.

zeros · ones · constant    one value everywhere; constant: the right output's mean
noise                      drawn with the mean and deviation of the right output
input                      an argument, cut or repeated to the output's size
previous                   what the call before returned, on other inputs
empty                      nothing is written: what the harness poisoned, or a mutated argument as it was; a
                           call that need not write to it is no place for this
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from fastkernels.audit.subject import Change, Draw, NotApplicable, Subject

_NOISE_SEED = 20
_POISON = 0xFF  # every byte: NaN in all floating-point formats, -1 in integers


def candidates(subject: Subject, draw: Draw) -> list[Change | NotApplicable]:
    """All of them. `draw` is any draw of the case: outputs are known by their looks only."""
    return [change for name in draw.right for change in _for_output(subject, draw, name)]


def _for_output(subject: Subject, draw: Draw, name: str) -> list[Change | NotApplicable]:
    example = draw.right[name]
    found: list[Change | NotApplicable] = [
        _spoiled("zeros", name, lambda draw, x: torch.zeros_like(x)),
        _spoiled("ones", name, lambda draw, x: torch.ones_like(x)),
        _spoiled("previous", name, lambda draw, x: draw.previous[name]),
        _empty(draw, name),
    ]
    if example.numel() > 1:
        found.append(_spoiled("constant", name, lambda draw, x: torch.full_like(x, x.double().mean().item())))
        found.append(_spoiled("noise", name, lambda draw, x: _noise(x)))
    else:
        for what in ("constant", "noise"):
            found.append(NotApplicable("trivial", f"{what} as {name}", "the output has one element"))
    kind = example.is_floating_point()
    arguments = [
        argument
        for argument, spec in subject.specs.items()
        if argument.startswith("arg.")
        and argument != name
        and getattr(torch, spec.dtype).is_floating_point == kind
    ]
    if not arguments:
        reason = f"no argument is {'floating-point' if kind else 'an integer'}"
        found.append(NotApplicable("trivial", f"input as {name}", reason))
    for argument in arguments:
        copied = _copied(argument)
        found.append(_spoiled(f"input {argument.removeprefix('arg.')}", name, copied))
    return found


def _empty(draw: Draw, name: str) -> Change | NotApplicable:
    if name not in draw.inputs:
        return _spoiled("empty", name, lambda draw, x: _poison(x))
    if torch.equal(draw.inputs[name], draw.right[name]):
        # Keys and values of a source are written when its request begins, and here none does.
        return NotApplicable("trivial", f"empty as {name}", "the call writes nothing to it")
    return _spoiled("empty", name, lambda draw, x: draw.inputs[name])


def _spoiled(what: str, name: str, make: Callable[[Draw, Tensor], Tensor]) -> Change:
    return Change("trivial", f"{what} as {name}", outputs=lambda draw, right: {name: make(draw, right[name])})


def _copied(argument: str) -> Callable[[Draw, Tensor], Tensor]:
    def copied(draw: Draw, x: Tensor) -> Tensor:
        source = draw.inputs[argument].flatten()
        repeats = -(-x.numel() // source.numel())
        return source.repeat(repeats)[: x.numel()].to(x.dtype).view(x.shape)

    return copied


def _noise(x: Tensor) -> Tensor:
    generator = Generator(x.device).manual_seed(_NOISE_SEED)
    if not x.is_floating_point():
        low, high = int(x.min()), int(x.max())
        return torch.randint(low, high + 1, x.shape, generator=generator, device=x.device, dtype=x.dtype)
    deviation, mean = torch.std_mean(x.double(), correction=0)
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=torch.float64)
    return (noise * deviation + mean).to(x.dtype)


def _poison(x: Tensor) -> Tensor:
    spoiled = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    spoiled.view(-1).view(torch.uint8).fill_(_POISON)
    return spoiled
