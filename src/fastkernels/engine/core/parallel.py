"""Which models several ranks serve together, and on which devices."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from fastkernels import registry
from fastkernels.errors import MachineError, UsageError
from fastkernels.loader.overlay import Overlay
from fastkernels.loader.weights import ModelSource, build, find
from fastkernels.registry.schema import Architecture


def device_of_rank_0(device: torch.device, size: int) -> torch.device:
    """Of `size` ranks; rank r has GPU r. UsageError; MachineError without as many GPUs, all alike."""
    if size == 1 or device.type != "cuda":
        return device
    if device.index is not None:
        raise UsageError(
            f"device={str(device)!r}: tensor_parallel_size={size} takes the GPUs 0 to {size - 1}: leave out "
            "the number, and say by CUDA_VISIBLE_DEVICES which they are"
        )
    count = torch.cuda.device_count()
    if count < size:
        raise MachineError(f"tensor_parallel_size={size}: this machine has {count} GPUs")
    first, *others = map(torch.cuda.get_device_properties, range(size))
    for rank, other in enumerate(others, 1):
        if (other.name, other.total_memory) != (first.name, first.total_memory):
            raise MachineError(
                f"tensor_parallel_size={size}: GPU 0 is {_said(first)} and GPU {rank} {_said(other)}. Ranks "
                "of unlike speed and memory wait for each other: choose like ones by CUDA_VISIBLE_DEVICES"
            )
    return torch.device("cuda", 0)


def require_served(source: ModelSource, size: int, splits_experts: bool) -> None:
    """UsageError where the model's layers are not written for several ranks, or there are no experts to
    split."""
    if not isinstance(splits_experts, bool):
        raise UsageError(f"enable_expert_parallel={splits_experts!r:.60}: there are True and False")
    if size == 1:
        return
    if dist.is_initialized():
        raise UsageError(
            "torch.distributed's default group is in use in this process, and ranks need it: shut down the "
            "other LLM with a tensor_parallel_size, or leave your own group, first"
        )
    served = [entry for entry in registry.architectures() if "tensor" in entry.parallel]
    if "tensor" not in source.architecture.parallel:
        raise UsageError(
            f"tensor_parallel_size={size}: {source.name} is served on one rank alone. "
            f"{_missing(source, served)}Architectures for several: {', '.join(e.id for e in served)}"
        )
    if splits_experts and "expert" not in source.architecture.parallel:
        raise UsageError(f"enable_expert_parallel: {source.name} has no experts to split")


def _missing(source: ModelSource, served: list[Architecture]) -> str:
    known = set().union(*(_tasks(find(entry.id)) for entry in served))
    lacking = sorted(_tasks(source) - known - {source.architecture.task})
    return f"Not written for several yet: {', '.join(lacking)}. " if lacking else ""


def _tasks(source: ModelSource) -> set[str]:
    """Of all modules in the model."""
    overlay = Overlay.over_baseline()
    model = build(source, overlay, torch.device("meta"), torch.float32)
    return {task for module in model.modules() if (task := overlay.task(type(module)))}


def _said(gpu: Any) -> str:
    return f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)"
