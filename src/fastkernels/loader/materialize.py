"""From a case to a call: a module of an overlay, its parameters, caches and ambient step.

    module = build_module(overlay, case, "cuda")
    call = bind(module, case, tensors)          loads parameters, binds caches, orders arguments
    outputs = call.invoke()                     {"out.0": ..., "arg.key_cache": ..., "cache.0.0.k_cache": ...}

A timing loop enters `call.ambient()` once and times `call.run()`. Tensors are used where they lie (arguments,
caches, step) or copied into the module (parameters).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastkernels import registry
from fastkernels.loader import ranks
from fastkernels.loader.overlay import Overlay
from fastkernels.nn.cache import paged_owners, state_owners
from fastkernels.nn.context import Step, use_step
from fastkernels.records import Case, TensorSpec


class SignatureMismatch(TypeError):
    """A class cannot stand where the baseline's stands: arguments, parameters or caches differ."""


def task_class(overlay: Overlay, case: Case) -> type[nn.Module]:
    """The class of the case's variant, from the highest layer that defines it."""
    name = registry.task(case.task).variants[case.variant]
    found = getattr(overlay.load(case.task), name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise SignatureMismatch(f"{case.task}: {name} must be a class derived from torch.nn.Module")
    return found


def build_module(
    overlay: Overlay, case: Case, device: torch.device | str, dtype: torch.dtype | None = None
) -> nn.Module:
    """The case's module in eval mode, parameters unset. `dtype`: in place of the case's (oracle: float64)."""
    cls = task_class(overlay, case)
    try:
        inspect.signature(cls).bind(**case.init)
    except TypeError as error:
        raise SignatureMismatch(
            f"{cls.__name__}.__init__ does not take the baseline's arguments: {error}"
        ) from error
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype or getattr(torch, case.dtype))
    try:
        with torch.device(device):
            module = cls(**case.init)
    finally:
        torch.set_default_dtype(previous)
    if dtype is not None:
        module.to(dtype)  # what a module makes in a dtype of its own choice
    return module.eval().requires_grad_(False)


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied tensor once, under its first name."""
    first: dict[int, str] = {}
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if first.setdefault(id(value), name) == name}


def mutable_names(mutates: Iterable[str], specs: Iterable[str]) -> set[str]:
    """The tensors that a call may change: the task's `mutates` arguments and the module's own caches."""
    declared = {f"arg.{name}" for name in mutates}
    return {name for name in specs if name in declared or name.startswith(("cache.", "state."))}


def load_parameters(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy every `param.NAME` into the module, all and only those; then `prepare` it. May be called again."""
    have = parameters(module)
    given = {
        name.removeprefix("param."): value for name, value in tensors.items() if name.startswith("param.")
    }
    if problems := differences(have, given):
        raise SignatureMismatch(
            f"{type(module).__name__}: parameters differ from the baseline's: {'; '.join(problems)}"
        )
    with torch.no_grad():
        for name, value in given.items():
            have[name].copy_(value)
    prepare(module)


def differences(have: Mapping[str, Tensor], baseline: Mapping[str, Tensor]) -> list[str]:
    """How a candidate's parameters differ from the baseline's, in words, one for each."""
    lacking = [f"lacks {name} {tuple(value.shape)}" for name, value in baseline.items() if name not in have]
    further = [
        f"has {name} {tuple(value.shape)}, which the baseline has not"
        for name, value in have.items()
        if name not in baseline
    ]
    misshapen = [
        f"{name} is {tuple(have[name].shape)}, the baseline's is {tuple(value.shape)}"
        for name, value in baseline.items()
        if name in have and have[name].shape != value.shape
    ]
    return [*lacking, *further, *misshapen]


def prepare(module: nn.Module) -> None:
    """Let modules that define `prepare()` repack their parameters: after every load, so it is repeatable."""
    for part in module.modules():
        if callable(repack := getattr(part, "prepare", None)):
            repack()


@dataclass(frozen=True)
class Call:
    """One forward call, ready to be made. `mutable`: the tensors that it is declared to change, by name."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    step: Step | None
    mutable: dict[str, Tensor]
    peers: tuple[Call, ...] = ()  # of the other ranks, where one process makes the calls of all
    rank: int = 0  # the own one; the peers follow it round the group

    def ambient(self) -> AbstractContextManager[None]:
        return use_step(self.step)

    def run(self) -> Any:
        """Forward as it returns; inside `ambient()`."""
        if self.peers:
            # Here, because kernels of an older revision (fk gate) have none.
            from fastkernels.kernels.group import simulated

            from_own = (self, *self.peers)
            from_first = (from_own[place - self.rank] for place in range(len(from_own)))
            return simulated([call._forward for call in from_first])[self.rank]
        return self._forward()

    def _forward(self) -> Any:
        return self.module(*self.args, **self.kwargs)

    def outputs(self, result: Any) -> dict[str, Any]:
        """`out.0` .. of a result's parts, and the mutable tensors."""
        return {f"out.{i}": part for i, part in enumerate(parts(result))} | self.mutable

    def invoke(self) -> dict[str, Any]:
        with self.ambient(), torch.no_grad():
            return self.outputs(self.run())


def parts(result: Any) -> tuple[Any, ...]:
    """What a forward returned: a tuple's members in order.

    No baseline returns a list, a tuple around one tensor, or None beside tensors: who calls the module would
    fail. Such a result stays as it is, and so does a None in a tuple: to say so is the judge's part. A
    derived tuple's members could be computed while it is unpacked, when no clock runs.
    """
    several = type(result) is tuple and len(result) > 1
    return () if result is None else result if several else (result,)


def bind(module: nn.Module, case: Case, tensors: Mapping[str, Tensor], load: bool = True) -> Call:
    """A call of `module` on a trial's tensors. `load=False`: its parameters are in place (next iteration).
    With its peers' tensors beside them, the calls of all ranks, of which the own one's results count."""
    rank = ranks.own_rank(tensors)
    tensors, *others = ranks.by_rank(tensors)
    if load:
        load_parameters(module, tensors)
    peers = tuple(bind(module, case, theirs, load=False) for theirs in others)
    has_caches = _bind_caches(module, tensors) + _bind_states(module, tensors) > 0
    values = {
        name: tensors[f"arg.{name}"] if isinstance(value, TensorSpec) else value
        for name, value in case.inputs.items()
    }
    try:
        bound = inspect.signature(module.forward).bind(**values)
    except TypeError as error:
        raise SignatureMismatch(
            f"{type(module).__name__}.forward does not take the baseline's arguments: {error}"
        ) from error
    mutable = mutable_names(registry.task(case.task).mutates, tensors)
    return Call(
        module,
        bound.args,
        bound.kwargs,
        _step(case, tensors) if has_caches else None,
        {name: tensors[name] for name in sorted(mutable)},
        peers,
        rank,
    )


def _bind_caches(module: nn.Module, tensors: Mapping[str, Tensor]) -> int:
    """Give the I-th owner of a paged cache the pools `cache.G.I.*`: by order, so names of modules are free.
    The number of owners."""
    owners = paged_owners(module)
    pools: dict[int, dict[str, tuple[int, Tensor]]] = {}
    for name, value in tensors.items():
        if name.startswith("cache."):
            _, group, index, kind = name.split(".")
            pools.setdefault(int(index), {})[kind] = (int(group), value)
    if len(owners) != len(pools):
        raise SignatureMismatch(
            f"{type(module).__name__} declares {len(owners)} paged caches, the baseline {len(pools)}: "
            "a module that keeps keys and values derives from fastkernels.nn.cache.CacheOwner"
        )
    for index, (_, owner, paged) in enumerate(owners):
        own = pools[index]
        (group, first) = next(iter(own.values()))
        if own.keys() != set(paged.pools) or tuple(first.shape[2:]) != tuple(paged.shape):
            raise SignatureMismatch(
                f"{type(owner).__name__} declares {' and '.join(paged.pools)} of {tuple(paged.shape)} for "
                f"each token, the baseline's are {' and '.join(own)} of {tuple(first.shape[2:])}"
            )
        owner.bind(group, **{name: pool for name, (_, pool) in own.items()})
    return len(owners)


def _bind_states(module: nn.Module, tensors: Mapping[str, Tensor]) -> int:
    """Give the I-th owner of a State the pools `state.I.NAME`: by order. The number of owners."""
    owners = state_owners(module)
    groups = list(dict.fromkeys(state for _, _, state in owners))
    pools: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("state."):
            _, index, tensor = name.split(".")
            pools.setdefault(int(index), {})[tensor] = value
    if len(owners) != len(pools):
        raise SignatureMismatch(
            f"{type(module).__name__} declares {len(owners)} states, the baseline {len(pools)}: "
            "a module that keeps a State for each request derives from fastkernels.nn.cache.CacheOwner"
        )
    for index, (_, owner, state) in enumerate(owners):
        declared = {name: tuple(shape) for name, shape in state.tensors}
        expected = {name: tuple(pool.shape[1:]) for name, pool in pools[index].items()}
        if declared != expected:
            raise SignatureMismatch(
                f"{type(owner).__name__} declares the state {declared} for each request, the baseline's is "
                f"{expected}"
            )
        owner.bind(groups.index(state), **pools[index])
    return len(owners)


def _step(case: Case, tensors: Mapping[str, Tensor]) -> Step:
    assert case.batch is not None
    batch = case.batch
    groups = range(sum(name.startswith("step.slots.") for name in tensors))
    return Step(
        query_starts_B1=tensors["step.query_starts"],
        seq_lens_B=tensors["step.seq_lens"],
        rows_B=tensors["step.rows"],
        block_tables_GBN=[tensors[f"step.block_tables.{group}"] for group in groups],
        slots_GT=[tensors[f"step.slots.{group}"] for group in groups],
        num_decodes=batch.num_decodes,
        max_query_len=max(batch.query_lens[batch.num_decodes :], default=0),
        max_seq_len=max(batch.seq_lens),
        begun_A=tensors.get("step.begun"),
    )
