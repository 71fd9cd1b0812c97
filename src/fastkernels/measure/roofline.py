"""The least time that a call can take on a device: what it must move and multiply, over what the device can.

    floor = max( read / R + written / W,  sum over dtypes of flops / F,  received / L )

`work` counts by running the baseline's module on the meta device and watching its kernels, each of which says
what it does (kernels/work.py):

    read       every argument, and every parameter that the call uses, once; less of what kernels read in part
    written    every output once; of caches and states, what kernels say
    received   from other ranks of a group
    flops      of products

Intermediates, block tables and position tables count nothing, so the floor is never too high. R, W, F and L
are measured ceilings (registry/devices/*.yaml, or measured at run time: ceilings.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fastkernels.kernels.base import observe
from fastkernels.kernels.group import Sketched, use_group
from fastkernels.kernels.work import Tally, size
from fastkernels.loader.inputs import trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.ranks import own
from fastkernels.loader.routing import reached
from fastkernels.measure.ceilings import Ceilings
from fastkernels.records import Case, TensorSpec

# Where a measured time lies below the floor by more than this, something else was measured: IMPLAUSIBLE.
# Ceilings from a device's file are its best kernels at its best clock (one H200: 790 TFLOP/s of a data
# sheet's 989, 4.6 TB/s of 4.8).
MARGIN = 1.25
# Ceilings measured in the run share their cores with whatever else runs, so they may come out too low.
MARGIN_MEASURED_HERE = 3.0


@dataclass(frozen=True, slots=True)
class Work:
    """What one call must do at least. `flops` by dtype name, of matrix products and attention."""

    read_bytes: int
    written_bytes: int
    flops: Mapping[str, int]
    received_bytes: int = 0

    @property
    def min_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


def work(case: Case, overlay: Overlay) -> Work:
    """Count a case's work on the baseline of `overlay`, without memory and without running it."""
    module = build_module(overlay, case, "meta")
    specs = own(trial_specs(case, module))
    tensors = meta_tensors(specs)
    call = bind(module, case, tensors)
    tally, used = Tally(_requests(case), _reached(case)), _Used()
    group = use_group(Sketched(case.ranks)) if case.ranks > 1 else nullcontext()
    with observe(tally), FlopCounterMode(display=False) as plain, used, group:
        outputs = call.invoke()
    # Plain matrix products of a module run in the case's dtype.
    tally.flops[case.dtype] = tally.flops.get(case.dtype, 0) + plain.get_total_flops()
    used.add(tally.arguments)
    parameters = {id(p): p for p in module.parameters() if used.has(p)}
    looked_up = {key: rows for key, rows in tally.rows_read.items() if key not in tally.read_whole}
    read = sum(size(p) for key, p in parameters.items() if key not in looked_up)
    read += sum(
        rows * size(parameters[key]) // len(parameters[key])
        for key, rows in looked_up.items()
        if key in parameters
    )
    read += sum(size(tensors[name]) for name, spec in specs.items() if _is_input(name, spec))
    written = sum(size(tensor) for name, tensor in outputs.items() if not _is_cache(name, specs))
    return Work(read + tally.pool_read, written + tally.pool_written, tally.flops, tally.received)


def floor_s(work: Work, ceilings: Ceilings) -> float:
    """The floor in seconds. Arithmetic in a dtype without a ceiling takes no time: the floor stays a
    floor."""
    return _floor_s(work, ceilings, work.written_bytes)


def _floor_s(work: Work, ceilings: Ceilings, written_bytes: int) -> float:
    memory_s = work.read_bytes / ceilings.read_bytes_s(work.min_bytes)
    memory_s += written_bytes / ceilings.write_bytes_s(work.min_bytes)
    return max(memory_s, _compute_s(work, ceilings), _link_s(work, ceilings))


def roofline_pct(work: Work, ceilings: Ceilings, measured_s: float) -> float:
    """Floor / measured time, in percent."""
    return 100 * floor_s(work, ceilings) / measured_s


def implausible(work: Work, ceilings: Ceilings, measured_s: float) -> str | None:
    """Why `measured_s` cannot be the time of this work, or None.

    Results may still lie in the last-level cache when the clock stops, so writes count only beyond its size.
    """
    margin = MARGIN_MEASURED_HERE if ceilings.measured_here else MARGIN
    least_s = _floor_s(work, ceilings, max(0, work.written_bytes - ceilings.cache_bytes)) / margin
    if measured_s >= least_s:
        return None
    flops = sum(work.flops.values())
    received = f", {work.received_bytes / 1e6:.3g} MB from other ranks" if work.received_bytes else ""
    return (
        f"{measured_s * 1e6:.3g} us for {work.min_bytes / 1e6:.3g} MB{received} and {flops / 1e9:.3g} GFLOP: "
        f"{ceilings.device} needs at least {least_s * 1e6:.3g} us"
    )


def _requests(case: Case) -> list[tuple[int, int]] | None:
    return list(zip(case.batch.query_lens, case.batch.seq_lens)) if case.batch else None


def _reached(case: Case) -> Callable[[int], int] | None:
    routing = case.routing
    return (lambda slots: reached(routing, slots // routing.top_k)) if routing else None


class _Used(TorchDispatchMode):
    """The storages that torch's operators were given: a model's forward leaves its head's weight alone."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.add(tree_leaves((args, kwargs or {})))
        return func(*args, **(kwargs or {}))

    def add(self, values: Sequence[Any]) -> None:
        self._storages |= {_storage(value) for value in values if isinstance(value, Tensor)}

    def has(self, tensor: Tensor) -> bool:
        return _storage(tensor) in self._storages


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _compute_s(work: Work, ceilings: Ceilings) -> float:
    rates = {dtype: ceilings.flops_s(dtype) for dtype, flops in work.flops.items() if flops}
    return sum(work.flops[dtype] / rate for dtype, rate in rates.items() if rate)


def _link_s(work: Work, ceilings: Ceilings) -> float:
    rate = ceilings.link_bytes_s() if work.received_bytes else None
    return work.received_bytes / rate if rate else 0.0


def meta_tensors(specs: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    """A trial's tensors without their memory."""
    return {
        name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
        for name, spec in specs.items()
    }


def _is_input(name: str, spec: TensorSpec) -> bool:
    """Arguments that are read whole: not pools, and not the tables that say where in them things lie."""
    return name.startswith("arg.") and spec.draw not in ("cache", "state", "kept", "step.block_tables")


def _is_cache(name: str, specs: Mapping[str, TensorSpec]) -> bool:
    return name in specs and specs[name].draw in ("cache", "state")
