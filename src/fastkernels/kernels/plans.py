"""Plan once, use in every layer: what an attention call derives from its batch, kept for the length of a
scope.

    with plan_scope():                      entered by nn.context.use_step, so once for each forward
        for layer in layers: ...            the first call plans, later calls with the same tensors find the
        plan

A plan is what depends on the lengths and block tables but not on queries, keys or values: FlashInfer's work
partition, gather indices, masks. Without a scope every call plans anew.

A plan that is made on the host reads lengths there: `on_host` gives what the scope was told of them, and
otherwise waits for the device.

Plans are keyed by the storage of the tensors that they were made from (a layer may slice the step's tensors
anew), their version where torch counts one, and static arguments; the scope holds these tensors, so an
address cannot be used again while its plan lives. A scope therefore must not outlive a change that torch
cannot see (a graph replay, a kernel that writes lengths): one scope for each forward.

`plan_scope(frozen=True)` promises more: until the scope ends, lengths and tables keep their values. Scopes
inside it share its plans, and a plan made before a CUDA graph is captured may be used inside the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

Plan = TypeVar("Plan")


@dataclass(slots=True)
class _Scope:
    frozen: bool
    plans: dict[Hashable, tuple[Any, Sequence[Tensor]]] = field(default_factory=dict)
    leases: list[Callable[[], None]] = field(default_factory=list)
    known: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # on the device, and on the host


_current: _Scope | None = None


@contextmanager
def plan_scope(*, frozen: bool = False, known: Sequence[tuple[Tensor, Tensor]] = ()) -> Iterator[None]:
    """Keep plans for the body; a scope inside a frozen scope is that scope. known: tensors of the device, one
    dimension each, with their values on the host."""
    global _current
    previous = _current
    if previous is not None and previous.frozen:
        yield
        return
    _current = scope = _Scope(frozen, known=list(known))
    try:
        yield
    finally:
        _current = previous
        for release in scope.leases:
            release()


def planned(name: str, tensors: Sequence[Tensor], static: Hashable, make: Callable[[], Plan]) -> Plan:
    """`make()`, or what it returned for the same tensors and static arguments earlier in this scope."""
    if _current is None:
        return make()
    key = _key(name, tensors, static)
    if (found := _current.plans.get(key)) is not None:
        return found[0]
    plan = make()
    _current.plans[key] = plan, tensors
    return plan


def planned_on_device(
    name: str, tensors: Sequence[Tensor], static: Hashable, make: Callable[[], Plan]
) -> Plan:
    """`planned`, for what device operations make of the tensors: in a CUDA graph made anew by every replay,
    unless a frozen scope holds it."""
    if capturing(tensors[0]) and not is_planned(name, tensors, static):
        return make()
    return planned(name, tensors, static, make)


def is_planned(name: str, tensors: Sequence[Tensor], static: Hashable) -> bool:
    """Whether a frozen scope holds this plan: the only kind that a CUDA graph may bake in."""
    return _current is not None and _current.frozen and _key(name, tensors, static) in _current.plans


def on_host(tensor_N: Tensor) -> Tensor:
    """Its values: without waiting for the device where the scope knows them, of a tensor or a slice of it."""
    known_N = _known(tensor_N)
    return tensor_N.cpu() if known_N is None else known_N


def know(made_N: Tensor, of_M: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """`made_N` is `change` of `of_M`: known on the host where that is."""
    if _current is not None and (known_M := _known(of_M)) is not None:
        _current.known.append((made_N, change(known_M)))


def _known(tensor_N: Tensor) -> Tensor | None:
    for device_M, host_M in _current.known if _current is not None else ():
        first = (tensor_N.data_ptr() - device_M.data_ptr()) // device_M.element_size()
        same = tensor_N.dtype == device_M.dtype and tensor_N.device == device_M.device
        if same and tensor_N.is_contiguous() and 0 <= first <= len(device_M) - len(tensor_N):
            return host_M[first : first + len(tensor_N)]
    return None


def lease(
    pool: list[Plan], make: Callable[[], Plan], is_free: Callable[[Plan], bool] = lambda _: True
) -> Plan:
    """An object that only one plan may use at a time, a free one of `pool` or new; it returns there when the
    scope ends.

    Without a scope it returns at once: the plan is used by the current call only.
    """
    taken = next((one for one in pool if is_free(one)), None)
    if taken is None:
        taken = make()
    else:
        pool.remove(taken)
    if _current is None:
        pool.append(taken)
    else:
        _current.leases.append(lambda: pool.append(taken))
    return taken


def capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured, so that reading lengths on the host is impossible."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _key(name: str, tensors: Sequence[Tensor], static: Hashable) -> Hashable:
    frozen = _current is not None and _current.frozen
    return name, static, *((t.data_ptr(), t.shape, t.stride(), 0 if frozen else _version(t)) for t in tensors)


def _version(tensor: Tensor) -> int:
    """How often torch has seen the tensor written; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version
