"""Whether the engines of a trial have a place here: as many devices as ranks, and memory for two of them."""

from __future__ import annotations

import torch

from fastkernels.engine.core import parallel
from fastkernels.errors import UsageError
from fastkernels.loader.weights import TOKENS, ModelSource, weights_bytes
from fastkernels.nn.partition import Partition, use_partition


def require_devices(device: str, ranks: int) -> None:
    """MachineError without as many GPUs, all alike."""
    parallel.device_of_rank_0(torch.device(device), ranks)


def require_split(source: ModelSource, ranks: int, splits_experts: bool, device: str) -> None:
    """UsageError where the model cannot be split over as many ranks."""
    if source.outputs != (TOKENS,):
        raise UsageError(f"--tp {ranks}: only models that answer with tokens run on several ranks")
    parallel.require_served(source, ranks, splits_experts)
    _rank_bytes(source, ranks, splits_experts, device)


def fit_together(source: ModelSource, ranks: int, splits_experts: bool) -> bool:
    """Whether two copies of the weights leave half of each GPU to caches, graphs and activations."""
    total = torch.cuda.get_device_properties(0).total_memory
    return 2 * _rank_bytes(source, ranks, splits_experts, "cuda") <= total / 2


def _rank_bytes(source: ModelSource, ranks: int, splits_experts: bool, device: str) -> int:
    """Of the weights that a rank has."""
    with use_partition(Partition(0, ranks, splits_experts)):
        return weights_bytes(source, source.dtype(torch.device(device)))
