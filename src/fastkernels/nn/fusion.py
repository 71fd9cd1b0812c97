"""Whether a module may compute several of its parts as one kernel.

    self.fuses = Fusion(self, "fc1", "activation_fn")               when it is made
    if self.fuses and not x.is_meta: ...                            in forward

A fused kernel takes the weights of the parts and calls none of them: what has the place of a part, or is
hooked to it, would never run. So a Fusion is true only while calling the parts would run what the baseline
wrote and nothing else, and is asked at every call. On the meta device, where nothing is computed, the parts
are called: who walks a model to find its calls sees each of them. Who watches a model on another device does
it inside `with apart(model)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.layout import data_dir, file_of


@dataclass(frozen=True, slots=True)
class Rerouted:
    """In the place of a method while somebody else decides when it is called: no change of what runs."""

    method: Callable[..., Any]
    through: Callable[..., Any]  # called with the method and its arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.through(self.method, *args, **kwargs)


class Fusion:
    """True while the parts `names` of `owner`, each with everything in it, are those that `owner` was made
    with, they were the baseline's own, and nobody has changed their `forward` or hooked them.

    Of `attn.store` the module `attn` on the way counts as well, but not what else is in it.
    """

    def __init__(self, owner: nn.Module, *names: str) -> None:
        # What hangs where, and what a call of it runs. No reference to the owner: it goes when it is dropped.
        self._made: list[tuple[dict[str, Any], str, nn.Module, object]] = []
        self._ours = False
        for name in names:
            for modules, key, part in _parts(owner, name):
                if not (_is_ours(file_of(type(part))) and _is_ours(file_of(part.forward))):
                    return
                self._made.append((modules, key, part, part.forward.__func__))
        self._ours = True

    def __bool__(self) -> bool:
        return self._ours and self._as_made()

    def _as_made(self) -> bool:
        """In words that Dynamo traces and guards (it takes bound methods for unequal): a compiled parent is
        traced anew when a part is another."""
        for modules, key, part, function in self._made:
            if modules.get(key) is not part or part._forward_hooks or part._forward_pre_hooks:
                return False
            forward = part.forward
            if isinstance(forward, Rerouted):
                forward = forward.method
            if not isinstance(forward, MethodType) or forward.__func__ is not function:
                return False
        return True


@contextmanager
def apart(model: nn.Module) -> Iterator[None]:
    """The modules of `model` call their parts one by one in the body."""
    fusing = [
        (vars(module), name, fusion)
        for module in model.modules()
        for name, fusion in vars(module).items()
        if isinstance(fusion, Fusion)
    ]
    for attributes, name, _ in fusing:
        attributes[name] = False
    try:
        yield
    finally:
        for attributes, name, fusion in fusing:
            attributes[name] = fusion


def add_and_norm(
    x_TD: Tensor, residual_TD: Tensor, norm: Any, fuses: Fusion | bool, scale: Any = None
) -> tuple[Tensor, Tensor]:
    """(norm(s), s), s = x + residual, or scale(x, residual); norm: an L1 LayerNorm, scale: an L1 LayerScale,
    or what has their places where `fuses` is not true."""
    if fuses and not x_TD.is_meta:
        scale_D = () if scale is None else (scale.lambda1,)
        return kernels.add_layer_norm(x_TD, residual_TD, norm.weight, norm.bias, norm.eps, *scale_D)
    sum_TD = x_TD + residual_TD if scale is None else scale(x_TD, residual_TD)
    return norm(sum_TD), sum_TD


def normed_sum(x_TD: Tensor, residual_TD: Tensor, norm: Any, fuses: Fusion | bool) -> Tensor:
    """norm(x + residual) where nobody asks for the sum; norm: as of add_and_norm."""
    if fuses and not x_TD.is_meta:
        return kernels.sum_layer_norm(x_TD, residual_TD, norm.weight, norm.bias, norm.eps)
    return norm(x_TD + residual_TD)


def _parts(owner: nn.Module, name: str) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """(what it hangs in, its key there, the part) of every module on the way to part `name`, of that, and of
    everything in it."""
    for key in name.split("."):
        part = getattr(owner, key)
        yield owner._modules, key, part
        owner = part
    for inner in owner.modules():
        for key, part in inner.named_children():
            yield inner._modules, key, part


@cache
def _is_ours(file: Path | None) -> bool:
    return file is not None and file.resolve().is_relative_to(data_dir("baseline").resolve())
