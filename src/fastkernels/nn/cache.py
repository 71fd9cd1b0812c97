"""What a layer declares about its memory: `Paged` (one entry for each token) or `State` (one for each
request).

A module that owns a cache has an attribute `cache: Paged | State`. The engine (or the harness of a trial)
walks the modules, groups equal declarations, allocates a pool for each module and calls `bind(group, pool)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Paged:
    """One entry of `shape` for each token, in blocks of `block_size` tokens: pool [blocks, block_size,
    *shape].

    window: a query at position p reads positions p-window+1 .. p only; older blocks may be freed.
    """

    shape: tuple[int, ...]
    window: int | None = None
    source: str = "self"


@dataclass(frozen=True, slots=True)
class State:
    """Tensors of the given shapes for each request, at its row: pool [rows, *shape] for each name."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]


class CacheOwner(nn.Module):
    """A module with a paged K and V cache: pools k_cache and v_cache [blocks, block_size, kv heads, head
    dim].
    """

    cache: Paged
    group: int
    k_cache: Tensor
    v_cache: Tensor

    def bind(self, group: int, k_cache: Tensor, v_cache: Tensor) -> None:
        """Use these pools; `group` says which block tables and slots of the step address them."""
        self.group, self.k_cache, self.v_cache = group, k_cache, v_cache


def cache_owners(module: nn.Module) -> list[tuple[str, CacheOwner]]:
    """(qualified name, module) of every module below `module` that declares a cache, in forward order of
    registration.
    """
    return [(name, owner) for name, owner in module.named_modules() if isinstance(owner, CacheOwner)]


def cache_groups(module: nn.Module) -> list[Paged]:
    """The distinct declarations below `module`, in order of first use; an owner's group is its index here."""
    return list(dict.fromkeys(owner.cache for _, owner in cache_owners(module)))


def allocate(
    module: nn.Module,
    num_blocks: int | list[int],
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> dict[str, Tensor]:
    """Allocate zeroed pools for every owner below `module`, bind them, and return them as
    `{name}.k_cache|v_cache`.
    """
    groups = cache_groups(module)
    sizes = [num_blocks] * len(groups) if isinstance(num_blocks, int) else num_blocks
    pools: dict[str, Tensor] = {}
    for name, owner in cache_owners(module):
        group = groups.index(owner.cache)
        shape = (sizes[group], block_size, *owner.cache.shape)
        k_cache, v_cache = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        owner.bind(group, k_cache, v_cache)
        prefix = f"{name}." if name else ""
        pools[f"{prefix}k_cache"], pools[f"{prefix}v_cache"] = k_cache, v_cache
    return pools
