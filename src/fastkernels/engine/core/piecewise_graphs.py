"""Forwards in pieces: CUDA graphs, and between them the modules that own a cache, which run eagerly.

    graph 0 -> owner 0 -> graph 1 -> owner 1 -> ... -> graph n          of one padded number of tokens

Modules that own a cache read the lengths of the step's rows, on the host too; all else that a forward does
depends on the number of tokens alone. So a capture is cut at every call of such a module. What is captured
may ask the ambient step for slots and for nothing else: a module that does is recorded no further, and such
steps run eagerly. Padding has token 0 at position 0 and writes to the null block; owners never see it.

T tokens of a step, padded · n tokens of it
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fastkernels.engine.core.graph_pool import Captures, GraphPool
from fastkernels.engine.core.inputs import Inputs, Rows
from fastkernels.engine.core.packing import null_plan
from fastkernels.engine.core.plan import Plan
from fastkernels.nn.cache import cache_owners
from fastkernels.nn.context import step, use_step
from fastkernels.nn.fusion import Rerouted

# Beyond as many tokens the device takes longer than the launches of an eager step.
MOST_TOKENS = 1024
LEAST_TOKENS = 16

Call = Callable[..., Tensor]


class Runner(Protocol):
    """What a recording needs of the model runner."""

    model: nn.Module
    device: torch.device

    @property
    def rows(self) -> Rows: ...

    def upload(self, plan: Plan) -> Inputs: ...


def piece_sizes(most: int) -> list[int]:
    """16, 24, 32, 48, 64 ... most: less than a third is padding."""
    sizes, size = {most}, LEAST_TOKENS
    while size < most:
        sizes |= {size, min(most, size * 3 // 2)}
        size *= 2
    return sorted(sizes)


@dataclass(frozen=True, slots=True)
class Break:
    """An owner's call between two graphs: with arguments that the one ahead wrote, for the one behind."""

    call: Call
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out_T: Tensor

    def run(self, count: int) -> None:
        padded_call(self.call, count, self.out_T, *self.args, **self.kwargs)


def padded_call(call: Call, count: int, out_T: Tensor, *args: Any, **kwargs: Any) -> None:
    """`call` for the first `count` tokens of its arguments; zeros behind them."""
    size = len(out_T)

    def first(x: Tensor) -> Tensor:
        return x[:count] if x.dim() and len(x) == size else x

    args, kwargs = tree_map_only(Tensor, first, (args, kwargs))
    out_T[:count].copy_(call(*args, **kwargs))
    out_T[count:].zero_()


@dataclass(frozen=True, slots=True)
class Recorded:
    """A forward of up to T tokens, called as the model is: inside the step that it computes."""

    graphs: list[torch.cuda.CUDAGraph]
    breaks: list[Break]
    inputs: StaticInputs
    hidden_TD: Tensor

    def __call__(self, input_ids_T: Tensor, positions_T: Tensor) -> Tensor:
        count = len(input_ids_T)
        self.inputs.take(input_ids_T, positions_T, step().slots_GT)
        for graph, owner in zip_longest(self.graphs, self.breaks):
            graph.replay()
            if owner is not None:
                owner.run(count)
        return self.hidden_TD[:count]


@dataclass(frozen=True, slots=True)
class StaticInputs:
    """What the graphs read. Where it is asked for anything else of the step, that raises: it would be baked
    in."""

    input_ids_T: Tensor
    positions_T: Tensor
    slots_GT: list[Tensor]
    known: ClassVar[tuple[()]] = ()

    def take(self, input_ids_T: Tensor, positions_T: Tensor, slots_GT: list[Tensor]) -> None:
        mine = (self.input_ids_T, self.positions_T, *self.slots_GT)
        for static_T, new_T in zip(mine, (input_ids_T, positions_T, *slots_GT), strict=True):
            static_T[: len(new_T)].copy_(new_T)
            static_T[len(new_T) :].zero_()

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"a module without a cache reads step().{name}")


class PieceGraphs:
    """The recorded forwards of an engine by their padded number of tokens, each recorded when such a step
    comes."""

    def __init__(self, pool: GraphPool, max_tokens: int) -> None:
        self.pool = pool
        self.sizes = piece_sizes(min(MOST_TOKENS, max_tokens))
        self.captures: Captures[int, Recorded] = Captures()

    def get(self, runner: Runner, plan: Plan) -> tuple[Recorded | None, str | None]:
        """The forward for such a step, recorded now if need be; or None and why it runs eagerly."""
        num_tokens = int(plan.counts_B.sum())
        if self.pool.disabled is not None:
            return None, self.pool.disabled
        if num_tokens > self.sizes[-1]:
            return None, f"step with prefill rows, more than {self.sizes[-1]} tokens"
        if any(admission.request.source is not None for admission in plan.admitted):
            return None, "requests with a source begin"
        if plan.spliced is not None:
            return None, "prompts with media"
        size = self.sizes[bisect_left(self.sizes, num_tokens)]
        return self.captures.get(size, lambda: self._record(runner, size))

    def _record(self, runner: Runner, size: int) -> Recorded:
        static, shapes = self._tried(runner, size)
        cuts: list[tuple[Any, ...]] = []
        with self.pool.tape() as tape:

            def cut(call: Call, *args: Any, **kwargs: Any) -> Tensor:
                tape.cut()
                # Made in the graph that reads it: its memory is nobody's between the two.
                out_T = torch.empty_like(shapes[len(cuts)], device=runner.device)
                cuts.append((call, *tree_map_only(Tensor, Place.of, (args, kwargs)), Place.of(out_T)))
                return out_T

            with use_step(static), owners_call(runner.model, cut):  # pyright: ignore[reportArgumentType]
                hidden_TD = runner.model(static.input_ids_T, static.positions_T)
        found = (tree_map_only(Place, Place.tensor, cut) for cut in cuts)
        return Recorded(tape.graphs, [Break(*parts) for parts in found], static, hidden_TD)

    def _tried(self, runner: Runner, size: int) -> tuple[StaticInputs, list[Tensor]]:
        """Inputs for so many tokens, after one forward on null rows; what owners gave, on the meta device."""
        longest = runner.rows.tokens_RL.shape[1] - 1
        counts = [min(longest, size - begin) for begin in range(0, size, longest)]
        inputs = runner.upload(null_plan(counts, len(runner.rows.tables_GRN)))
        shapes: list[Tensor] = []

        def observe(call: Call, *args: Any, **kwargs: Any) -> Tensor:
            out_T = call(*args, **kwargs)
            if not isinstance(out_T, Tensor) or len(out_T) != size:
                raise RuntimeError(f"{call} returns no tensor with a row for each token")
            shapes.append(out_T.to("meta"))
            return out_T

        with use_step(inputs.step), owners_call(runner.model, observe):
            self.pool.warm_up(lambda: runner.model(inputs.input_ids_T, inputs.positions_T))
        return StaticInputs(inputs.input_ids_T, inputs.positions_T, inputs.step.slots_GT), shapes


@contextmanager
def owners_call(model: nn.Module, handle: Callable[..., Tensor]) -> Iterator[None]:
    """In the body, calls of modules that own a cache go to `handle(call, *args)`; not those that one of them
    makes in turn."""
    inside = False

    def outermost(call: Call, *args: Any, **kwargs: Any) -> Tensor:
        nonlocal inside
        if inside:
            return call(*args, **kwargs)
        inside = True
        try:
            return handle(call, *args, **kwargs)
        finally:
            inside = False

    owners = [owner for _, owner in cache_owners(model)]
    calls = [(vars(owner), name, getattr(owner, name)) for owner in owners for name in owner.entries]
    before = [(own, name, own[name]) for own, name, _ in calls if name in own]
    for own, name, call in calls:
        own[name] = Rerouted(call, outermost)
    try:
        yield
    finally:
        for own, name, _ in calls:
            del own[name]
        for own, name, call in before:
            own[name] = call


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies. It is not kept: what is captured later may lie there too; it is replayed later."""

    address: int
    num_bytes: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    device: torch.device

    @classmethod
    def of(cls, x: Tensor) -> Place:
        storage = x.untyped_storage()
        where = storage.data_ptr(), storage.nbytes()
        return cls(*where, x.dtype, x.shape, x.stride(), int(x.storage_offset()), x.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tensor(self) -> Tensor:
        all_bytes = torch.as_tensor(self, device=self.device)
        return all_bytes.view(self.dtype).as_strided(self.shape, self.stride, self.offset)
