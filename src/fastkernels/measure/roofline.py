"""The least time that a call can take on a device: what it must move and multiply, over what the device can.

    floor = max( read / R + written / W,  sum over dtypes of flops / F,  received / L )

`work` counts by running the baseline's module on the meta device and watching its kernels:

    read       every argument, and every parameter that the call uses, once; of a table that is only looked
               up, as many rows as there are ids; of experts, those that have a token; of a paged cache, the
               entries that the batch's queries see (window counted), less those that the same call stores;
               states, but of requests that begin
    written    every output once; a paged cache: the entries of the step's tokens; the states of all requests
    received   from other ranks of a group: a sum of all as often as one rank's part of it, since switches can
               add up
    flops      2 M N K of matrix products (M slots of one by experts) and convolutions (M places, K elements
               of a filter), 4 H K of each visible (query, key) pair of attention, 4 H K V of each token of
               linear attention; a scan's are no products

Intermediates, block tables and position tables count nothing, so the floor is never too high. R, W, F and L
are measured ceilings (registry/devices/*.yaml, or measured at run time: ceilings.py).

H query heads · K head size · J kv heads · V value size
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fastkernels.kernels.base import observe
from fastkernels.kernels.conv1d import num_frames
from fastkernels.kernels.conv2d import output_shape
from fastkernels.loader.inputs import trial_specs
from fastkernels.loader.materialize import bind, build_module
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.ranks import own
from fastkernels.loader.routing import reached
from fastkernels.measure.ceilings import Ceilings
from fastkernels.records import Batch, Case, Routing, TensorSpec

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
    watch, used = _Watch(case.batch, case.routing), _Used()
    with observe(watch), FlopCounterMode(display=False) as plain, used:
        outputs = call.invoke()
    # Plain matrix products of a module run in the case's dtype.
    watch.flops[case.dtype] = watch.flops.get(case.dtype, 0) + plain.get_total_flops()
    used.add(watch.arguments)
    parameters = {id(p): p for p in module.parameters() if used.has(p)}
    looked_up = {key: rows for key, rows in watch.rows_read.items() if key not in watch.read_whole}
    read = sum(_bytes(p) for key, p in parameters.items() if key not in looked_up)
    read += sum(
        rows * _bytes(parameters[key]) // len(parameters[key])
        for key, rows in looked_up.items()
        if key in parameters
    )
    read += sum(_bytes(tensors[name]) for name, spec in specs.items() if _is_input(name, spec))
    written = sum(_bytes(tensor) for name, tensor in outputs.items() if not _is_cache(name, specs))
    return Work(read + watch.cache_read, written + watch.cache_written, watch.flops, watch.received)


def floor_s(work: Work, ceilings: Ceilings) -> float:
    """The floor in seconds. Arithmetic in a dtype without a ceiling takes no time: the floor stays a
    floor."""
    memory_s = work.read_bytes / ceilings.read_bytes_s(work.min_bytes)
    memory_s += work.written_bytes / ceilings.write_bytes_s(work.min_bytes)
    return max(memory_s, _compute_s(work, ceilings), _link_s(work, ceilings))


def roofline_pct(work: Work, ceilings: Ceilings, measured_s: float) -> float:
    """Floor / measured time, in percent."""
    return 100 * floor_s(work, ceilings) / measured_s


def implausible(work: Work, ceilings: Ceilings, measured_s: float) -> str | None:
    """Why `measured_s` cannot be the time of this work, or None.

    Results may still lie in the last-level cache when the clock stops, so writes count only beyond its size.
    """
    memory_s = work.read_bytes / ceilings.read_bytes_s(work.min_bytes)
    memory_s += max(0, work.written_bytes - ceilings.cache_bytes) / ceilings.write_bytes_s(work.min_bytes)
    least_s = max(memory_s, _compute_s(work, ceilings), _link_s(work, ceilings)) / (
        MARGIN_MEASURED_HERE if ceilings.measured_here else MARGIN
    )
    if measured_s >= least_s:
        return None
    flops = sum(work.flops.values())
    received = f", {work.received_bytes / 1e6:.3g} MB from other ranks" if work.received_bytes else ""
    return (
        f"{measured_s * 1e6:.3g} us for {work.min_bytes / 1e6:.3g} MB{received} and {flops / 1e9:.3g} GFLOP: "
        f"{ceilings.device} needs at least {least_s * 1e6:.3g} us"
    )


def visible_pairs(query_len: int, seq_len: int, window: int) -> int:
    """(query, key) pairs of a causal row: query i sits at p = seq - query + i and sees min(p + 1, window)
    keys."""
    first = seq_len - query_len + 1  # keys that the first query sees without a window
    if not window:
        return query_len * first + query_len * (query_len - 1) // 2
    growing = max(0, min(query_len, window - first))
    return (
        growing * first + growing * (growing - 1) // 2 + (query_len - growing) * min(window, first + growing)
    )


def visible_keys(query_len: int, seq_len: int, window: int) -> int:
    """Keys that at least one query of the row sees."""
    return seq_len if not window else min(seq_len, window + query_len - 1)


@dataclass
class _Watch:
    """Observes kernel calls on meta tensors and adds up what they must do."""

    batch: Batch | None
    routing: Routing | None = None
    flops: dict[str, int] = field(default_factory=dict)
    received: int = 0
    cache_read: int = 0
    cache_written: int = 0
    rows_read: dict[int, int] = field(
        default_factory=dict
    )  # id(table or stack of experts) -> rows or experts
    read_whole: set[int] = field(default_factory=set)
    arguments: list[Tensor] = field(default_factory=list)
    _stored: set[int] = field(default_factory=set)  # id(cache) that this call has written

    def __call__(self, kernel: str, args: Sequence[Any]) -> None:
        count: dict[str, Callable[..., None]] = {
            "linear": self._linear,
            "conv2d": self._conv2d,
            "embedding": self._embedding,
            "grouped_linear": self._grouped,
            "store_kv": self._store,
            "prefill_attention": self._prefill,
            "decode_attention": self._decode,
            "chunk_gla": self._chunk_gla,
            "recurrent_gla": self._recurrent_gla,
            "causal_conv1d": self._conv,
            "causal_conv1d_update": self._conv_update,
            "selective_scan": self._scan,
            "selective_state_update": self._scan_update,
            "dense_attention": self._dense,
            "cross_attention": self._cross,
            "conv1d": self._conv1d,
            "all_reduce": self._all_reduce,
        }
        self.arguments += [arg for arg in args if isinstance(arg, Tensor)]
        if kernel not in ("embedding", "grouped_linear"):
            self.read_whole.update(id(arg) for arg in args if isinstance(arg, Tensor))
        if kernel in count:
            count[kernel](*args)

    def _linear(self, x: Tensor, weight_NK: Tensor, bias: Tensor | None = None) -> None:
        self._add(x, 2 * x.numel() * weight_NK.shape[0])

    def _conv2d(self, x: Tensor, weight_OUVI: Tensor, bias: Tensor | None, *how: int) -> None:
        places = prod(output_shape(x, weight_OUVI, *how)[:3])
        self._add(x, 2 * places * weight_OUVI.numel())

    def _embedding(self, ids: Tensor, weight_VD: Tensor) -> None:
        key = id(weight_VD)
        self.rows_read[key] = min(self.rows_read.get(key, 0) + ids.numel(), weight_VD.shape[0])

    def _grouped(
        self, x: Tensor, weight_ENK: Tensor, order_S: Tensor, starts: Tensor, slot_weights: Tensor | None
    ) -> None:
        assert self.routing is not None, "a product by experts needs to know how tokens choose them"
        slots = order_S.shape[0]
        self.rows_read[id(weight_ENK)] = reached(self.routing, slots // self.routing.top_k)
        self._add(x, 2 * slots * weight_ENK.shape[1] * weight_ENK.shape[2])

    def _store(self, key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
        self.cache_written += _bytes(key) + _bytes(value)
        self._stored |= {id(k_cache), id(v_cache)}

    def _prefill(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        starts: Tensor,
        seq_lens_B: Tensor,
        tables: Tensor,
        scale: float,
        window: int | None,
        *lens: int,
    ) -> None:
        self._attend(q, k_cache, v_cache, self._rows()[-len(seq_lens_B) :], window or 0)

    def _decode(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        seq_lens_B: Tensor,
        tables: Tensor,
        scale: float,
        window: int | None,
        *lens: int,
    ) -> None:
        self._attend(q, k_cache, v_cache, self._rows()[: len(seq_lens_B)], window or 0)

    def _dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_starts: Tensor,
        key_starts: Tensor,
        scale: float,
        max_query_len: int,
        max_key_len: int,
        causal: bool,
        bias: Tensor | None,
    ) -> None:
        """Every query of a row sees all its keys, or those up to itself; with one query a row, that is every
        key once. A module that makes its rows itself, all of one length, has no batch to say so."""
        count = len(query_starts) - 1
        if len(q) == count * max_query_len and len(k) == count * max_key_len:
            rows = [(max_query_len, max_key_len)] * count
        else:
            rows = [(min(query, max_query_len), seq) for query, seq in self._rows()]
        pairs = sum(visible_pairs(*row, 0) if causal else prod(row) for row in rows)
        self._add(q, 4 * q.shape[-1] * q.shape[-2] * pairs)

    def _cross(self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, rows: Tensor, *rest: Any) -> None:
        """Every query sees all keys that its request keeps; what this call has stored need not come from
        memory."""
        self._add(q, 4 * q.numel() * k.shape[1])
        for pool in (k, v):
            fresh = sum(query == seq for query, seq in self._rows()) if id(pool) in self._stored else 0
            self.cache_read += (rows.shape[0] - fresh) * _bytes(pool[0])

    def _conv1d(self, x: Tensor, weight_NCK: Tensor, bias: Tensor | None, stride: int, padding: int) -> None:
        frames = num_frames(x.shape[-1], weight_NCK.shape[-1], stride, padding)
        self._add(x, 2 * x.shape[0] * frames * weight_NCK.numel())

    def _attend(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: list[tuple[int, int]], window: int
    ) -> None:
        pairs = sum(visible_pairs(query, seq, window) for query, seq in rows)
        self._add(q, 4 * q.shape[-1] * q.shape[-2] * pairs)
        for cache in (k_cache, v_cache):
            fresh = id(cache) in self._stored  # this call's own tokens need not come from memory
            entries = sum(visible_keys(query, seq, window) - (query if fresh else 0) for query, seq in rows)
            self.cache_read += max(0, entries) * prod(cache.shape[2:]) * cache.element_size()

    def _chunk_gla(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, state: Tensor, *rest: Any) -> None:
        rows_B = rest[0]
        self._linear_attention(q, v, state, self._rows()[-len(rows_B) :])

    def _recurrent_gla(
        self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, state: Tensor, *rest: Any
    ) -> None:
        rows_B = rest[0]
        self._linear_attention(q, v, state, self._rows()[: len(rows_B)])

    def _linear_attention(self, q: Tensor, v: Tensor, state: Tensor, rows: list[tuple[int, int]]) -> None:
        """Each token adds to a state and reads it."""
        self._add(q, 4 * q.numel() * v.shape[-1])
        self._advance(state, rows)

    def _conv(self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, *rest: Any) -> None:
        self._advance(state, self._rows()[-len(rest[0]) :])

    def _conv_update(self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, *rest: Any) -> None:
        self._advance(state, self._rows()[: len(rest[0])])

    def _scan(self, *args: Any) -> None:
        state, rows_B = args[8:10]
        self._advance(state, self._rows()[-len(rows_B) :])

    def _scan_update(self, *args: Any) -> None:
        state, rows_B = args[8:10]
        self._advance(state, self._rows()[: len(rows_B)])

    def _advance(self, state: Tensor, rows: list[tuple[int, int]]) -> None:
        """A request that begins has no state to read from memory."""
        row_bytes = _bytes(state) // len(state)
        self.cache_read += row_bytes * sum(query < seq for query, seq in rows)
        self.cache_written += row_bytes * len(rows)

    def _all_reduce(self, x: Tensor) -> None:
        self.received += _bytes(x)

    def _rows(self) -> list[tuple[int, int]]:
        assert self.batch is not None, "attention needs a batch"
        return list(zip(self.batch.query_lens, self.batch.seq_lens))

    def _add(self, x: Tensor, flops: int) -> None:
        dtype = str(x.dtype).removeprefix("torch.")
        self.flops[dtype] = self.flops.get(dtype, 0) + flops


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


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _is_input(name: str, spec: TensorSpec) -> bool:
    """Arguments that are read whole: not pools, and not the tables that say where in them things lie."""
    return name.startswith("arg.") and spec.draw not in ("cache", "state", "kept", "step.block_tables")


def _is_cache(name: str, specs: Mapping[str, TensorSpec]) -> bool:
    return name in specs and specs[name].draw in ("cache", "state")
