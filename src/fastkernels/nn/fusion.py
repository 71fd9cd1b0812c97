"""Whether a module may compute several of its parts as one kernel.

    self.fuses = of_the_baseline(self.fc1, self.activation_fn)      when it is made
    if self.fuses and not x.is_meta: ...                            in forward

A fused kernel takes the weights of the parts and calls none of them, so a candidate in the place of a part
would never run. And where nothing is computed, on the meta device, the parts are called: who walks a model to
find its calls sees each of them. Who hooks parts on another device calls them inside `with apart(model)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from fastkernels import kernels
from fastkernels.layout import data_dir, file_of


def of_the_baseline(*parts: nn.Module) -> bool:
    """Whether the classes of `parts` and of everything in them come from files of the baseline."""
    return all(itself_of_the_baseline(module) for part in parts for module in part.modules())


def itself_of_the_baseline(module: nn.Module) -> bool:
    """The same of its own class alone: of a module some parts of which are called, fused or not."""
    return _is_ours(type(module))


@contextmanager
def apart(model: nn.Module) -> Iterator[None]:
    """The modules of `model` call their parts one by one in the body."""
    fusing = [module for module in model.modules() if vars(module).get("fuses") is True]
    for module in fusing:
        vars(module)["fuses"] = False
    try:
        yield
    finally:
        for module in fusing:
            vars(module)["fuses"] = True


def add_and_norm(x_TD: Tensor, residual_TD: Tensor, norm: Any, fuses: bool) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual); norm: an L1 LayerNorm, or what has its place where `fuses` is not
    set."""
    if fuses and not x_TD.is_meta:
        return kernels.add_layer_norm(x_TD, residual_TD, norm.weight, norm.bias, norm.eps)
    sum_TD = x_TD + residual_TD
    return norm(sum_TD), sum_TD


@lru_cache
def _is_ours(cls: type[nn.Module]) -> bool:
    file = file_of(cls)
    return file is not None and file.resolve().is_relative_to(data_dir("baseline").resolve())
