"""What the blocks of a module returned in a right run, for runs with a mistake in a later block.

    replay = Replay(module, blocks(module))
    with replay.recording(): ...                      a right run
    with replay.before("layers.20.mlp"): ...          blocks that had ended before layers.20 began return what
                                                      they did there; the others run

A block is a member of an nn.ModuleList. One that is called more than once is never left out. Of a module that
changes its arguments nothing may be left out: what a block wrote would be missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


def blocks(module: nn.Module) -> list[str]:
    """Names of all blocks, also of those inside others."""
    return [
        f"{name}.{key}".removeprefix(".")
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList)
        for key, _ in part.named_children()
    ]


class Replay:
    def __init__(self, module: nn.Module, blocks: Sequence[str]) -> None:
        self._module, self._blocks = module, blocks
        self._begun: Counter[str] = Counter()
        self._results: dict[str, Any] = {}  # in the order in which they ended
        self._ended: dict[str, int] = {}  # how many blocks had ended when one began

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._begun.clear()
        self._results.clear()
        self._ended.clear()
        with ExitStack() as hooks:
            for name in self._blocks:
                block = self._module.get_submodule(name)
                hooks.callback(block.register_forward_pre_hook(self._begins(name)).remove)
                hooks.callback(block.register_forward_hook(self._ends(name)).remove)
            yield

    @contextmanager
    def before(self, part: str) -> Iterator[None]:
        """`part`: in which alone the run differs from the right one; "": anywhere."""
        with ExitStack() as replaced:
            for name in self._left_out(part):
                block = self._module.get_submodule(name)
                block.forward = _returning(self._results[name])
                replaced.callback(delattr, block, "forward")
            yield

    def _left_out(self, part: str) -> list[str]:
        around = [name for name in self._blocks if f"{part}.".startswith(f"{name}.")]
        first = min(around, key=len, default="")
        ended = [*self._results][: self._ended.get(first, 0)]
        return [name for name in ended if self._begun[name] == 1]

    def _begins(self, name: str) -> Any:
        def hook(block: nn.Module, arguments: Any) -> None:
            self._begun[name] += 1
            self._ended.setdefault(name, len(self._results))

        return hook

    def _ends(self, name: str) -> Any:
        def hook(block: nn.Module, arguments: Any, result: Any) -> None:
            self._results.setdefault(name, _cloned(result))

        return hook


def _returning(result: Any) -> Any:
    return lambda *arguments, **named: _cloned(result)


def _cloned(result: Any) -> Any:
    """What follows may change it in place."""
    return tree_map_only(Tensor, Tensor.clone, result)
