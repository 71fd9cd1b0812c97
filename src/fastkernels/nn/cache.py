"""What a layer declares about its memory: `Paged` (one entry for each token) or `State` (one for each
request).

A module that owns a cache is a `CacheOwner`: its attribute `cache` is the declaration. The engine (or the
harness of a trial) walks the modules, allocates pools for each and calls `bind`. Paged pools are addressed by
the block tables and slots of the module's group of equal declarations, states by the step's rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Paged:
    """One entry of `shape` for each token, in blocks of `block_size` tokens, in each of the named pools
    [blocks, block_size, *shape]: keys and values, or latents. Block 0 is null: padding writes there.

    window: a query at position p reads positions p-window+1 .. p only; older blocks may be freed.
    """

    shape: tuple[int, ...]
    window: int | None = None
    pools: tuple[str, ...] = ("k_cache", "v_cache")


@dataclass(frozen=True, slots=True)
class State:
    """Tensors of the given shapes for each request, at its row: a pool [rows, *shape] for each name.

    Zero when a request takes the row, then what the request's last step left there. A layer reads and writes
    the rows of the step (`Step.rows_B`) alone. Row 0 is null: padding reads and writes there.

    source: "self", a recurrence over the request's tokens. Pools are float32 at least, whatever the module's
    dtype: it sums over a whole sequence. "cross", what the layer made of the request's encoder states when it
    began (`Step.begun_A`), in the module's dtype and never changed after it.
    """

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    source: Literal["self", "cross"] = "self"

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Of the pools of a module that computes in `dtype`."""
        return dtype if self.source == "cross" else torch.promote_types(dtype, torch.float32)


class CacheOwner(nn.Module):
    """A module with pools of its own: attributes of the names that its Paged or State gives them.

    entries: methods that other modules call. Each takes tensors with a row for each token of the step, and
    returns one such tensor.
    """

    entries: ClassVar[tuple[str, ...]] = ("forward",)
    cache: Paged | State
    group: int
    k_cache: Tensor
    v_cache: Tensor

    def bind(self, group: int, **pools: Tensor) -> None:
        """Use these pools. `group`: which block tables and slots of the step address paged ones."""
        self.group = group
        for name, pool in pools.items():
            setattr(self, name, pool)


def cache_owners(module: nn.Module) -> list[tuple[str, CacheOwner]]:
    """(qualified name, module) of every module below `module` that declares a cache, in forward order of
    registration.
    """
    return [(name, owner) for name, owner in module.named_modules() if isinstance(owner, CacheOwner)]


def paged_owners(module: nn.Module) -> list[tuple[str, CacheOwner, Paged]]:
    """(name, module, declaration) of those with one entry for each token."""
    return [(name, o, o.cache) for name, o in cache_owners(module) if isinstance(o.cache, Paged)]


def state_owners(module: nn.Module) -> list[tuple[str, CacheOwner, State]]:
    """(name, module, declaration) of those with one entry for each request."""
    return [(name, o, o.cache) for name, o in cache_owners(module) if isinstance(o.cache, State)]


def cache_groups(module: nn.Module) -> list[Paged]:
    """The distinct Paged declarations, in order of first use; an owner's group is its index here."""
    return list(dict.fromkeys(spec for _, _, spec in paged_owners(module)))


def state_groups(module: nn.Module) -> list[State]:
    """The distinct State declarations, in order of first use; an owner's group is its index here."""
    return list(dict.fromkeys(spec for _, _, spec in state_owners(module)))


def has_source(module: nn.Module) -> bool:
    """Whether requests bring encoder states along, which layers below `module` attend to."""
    return any(state.source == "cross" for _, _, state in state_owners(module))


def allocate(
    module: nn.Module,
    num_blocks: int | list[int],
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> dict[str, Tensor]:
    """Allocate zeroed paged pools for every owner below `module`, bind them, and return them as
    `{name}.k_cache|v_cache` (as `Paged.pools` names them).
    """
    groups = cache_groups(module)
    sizes = [num_blocks] * len(groups) if isinstance(num_blocks, int) else num_blocks
    pools: dict[str, Tensor] = {}
    for name, owner, spec in paged_owners(module):
        group = groups.index(spec)
        shape = (sizes[group], block_size, *spec.shape)
        own = {pool: torch.zeros(shape, dtype=dtype, device=device) for pool in spec.pools}
        owner.bind(group, **own)
        pools |= {f"{name}.{pool}" if name else pool: tensor for pool, tensor in own.items()}
    return pools


def allocate_states(
    module: nn.Module, num_rows: int, dtype: torch.dtype, device: torch.device | str
) -> list[Tensor]:
    """Allocate zeroed states of `num_rows` rows (the null row included) for a module that computes in
    `dtype`, bind them, and return them: [owners, rows, *shape] for each tensor of each group.

    Owners of a group share an allocation, so that a row is zeroed by one launch for all layers.
    """
    stacked = []
    for group, spec in enumerate(state_groups(module)):
        owners = [owner for _, owner, own in state_owners(module) if own == spec]
        pools = {
            name: torch.zeros((len(owners), num_rows, *shape), dtype=spec.dtype(dtype), device=device)
            for name, shape in spec.tensors
        }
        for index, owner in enumerate(owners):
            owner.bind(group, **{name: pool[index] for name, pool in pools.items()})
        stacked += pools.values()
    return stacked
