"""A module whose parameters stay in it from call to call."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fastkernels.loader.materialize import Call, bind, parameters, prepare
from fastkernels.records import Case


class Resident:
    """Knows which parameters lie in its module: of an audit's hundreds of calls most change one, or none.

    Parameters are copied one after another, in whatever dtype they come, so a mapping may make them as they
    are asked for.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._places = {f"param.{name}": place for name, place in parameters(module).items()}
        self._there: dict[str, weakref.ref[Tensor]] = {}

    def bound(self, case: Case, tensors: Mapping[str, Tensor]) -> Call:
        """A call on these tensors; parameters that are in place already, as the same objects, stay there."""
        self.load(tensors, kept=True)
        return bind(self.module, case, tensors, load=False)

    def load(self, tensors: Mapping[str, Tensor], kept: bool = False) -> None:
        """Copy every parameter, or, if they are `kept`, those that are other objects than the last ones."""
        changed = False
        with torch.no_grad():
            for name, place in self._places.items():
                tensor, there = tensors[name], self._there.get(name)
                if kept and there is not None and there() is tensor:
                    continue
                place.copy_(tensor)
                self._there[name] = weakref.ref(tensor)
                del tensor  # before the next one is made
                changed = True
        if changed:
            prepare(self.module)
