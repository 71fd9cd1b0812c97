"""Facts about tasks, models, workloads and devices: read from `registry/`, validated, without torch."""

from fastkernels.registry.lookup import cases, find_tasks, matching, no_task, task, tasks, tasks_of
from fastkernels.registry.models import (
    architecture_for,
    architectures,
    batches,
    device,
    find_architectures,
    production,
    read_config,
    suite,
    suites,
    workloads,
)
from fastkernels.registry.models import find_architecture as architecture

__all__ = [
    "architecture",
    "architecture_for",
    "architectures",
    "batches",
    "cases",
    "device",
    "find_architectures",
    "find_tasks",
    "matching",
    "no_task",
    "production",
    "read_config",
    "suite",
    "suites",
    "task",
    "tasks",
    "tasks_of",
    "workloads",
]
